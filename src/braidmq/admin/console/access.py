"""Users, their roles, and who may use which topic."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.view import PageRoute, View

_PERMISSIONS: Final = ("read", "write", "admin")


async def show_users(view: View) -> Response:
    return await view.render("users.html", users=await view.fetch("list_users"), roles=await view.fetch("list_roles"))


async def create_user(view: View) -> Response:
    form = await view.form()
    name = form.get("username", "")
    roles = [form["role"]] if form.get("role") else []
    await view.act("create_user", body={"username": name, "password": form.get("password", ""), "roles": roles})
    return view.go("/console/users", f"Created user {name}.")


async def update_user(view: View) -> Response:
    """Roles, or whether somebody is let in: whichever the form has."""
    name, form = view.named("user"), await view.form()
    body: dict[str, object] = {}
    if "enabled" in form:
        body["enabled"] = form["enabled"] == "true"
    if "roles" in form:
        body["roles"] = _listed(form["roles"])
    await view.act("update_user", {"user": name}, body=body)
    return view.go("/console/users", f"Changed {name}.")


async def set_password(view: View) -> Response:
    name, form = view.named("user"), await view.form()
    body = {"new_password": form.get("new_password", ""), "old_password": form.get("old_password", "")}
    await view.act("change_password", {"user": name}, body=body)
    return view.go("/console/users", f"{name} has a new password, and has to log in again.")


async def delete_user(view: View) -> Response:
    name = view.named("user")
    await view.act("delete_user", {"user": name})
    return view.go("/console/users", f"Deleted user {name}.")


async def create_role(view: View) -> Response:
    form = await view.form()
    name = form.get("name", "")
    permissions = [each for each in _PERMISSIONS if form.get(each)]
    await view.act("create_role", body={"name": name, "permissions": permissions, "description": form.get("description", "")})
    return view.go("/console/users", f"Created role {name}.")


async def delete_role(view: View) -> Response:
    name = view.named("role")
    await view.act("delete_role", {"role": name})
    return view.go("/console/users", f"Deleted role {name}.")


async def show_acls(view: View) -> Response:
    return await view.render("acls.html", acls=await view.fetch("list_acls"), default_public=view.site.config.auth_default_public)


async def set_acl(view: View) -> Response:
    form = await view.form()
    pattern = form.get("pattern", "")
    body = {
        "public": form.get("public") == "true", "allowed_users": _listed(form.get("users", "")),
        "allowed_roles": _listed(form.get("roles", "")),
    }  # fmt: skip
    await view.act("set_acl", {"pattern": pattern}, body=body)
    return view.go("/console/acls", f"Saved the ACL of {pattern}.")


async def delete_acl(view: View) -> Response:
    pattern = view.named("pattern")
    await view.act("delete_acl", {"pattern": pattern})
    return view.go("/console/acls", f"Took the ACL of {pattern} away.")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


PAGES: Final = (
    PageRoute("GET", "/console/users", show_users),
    PageRoute("POST", "/console/users", create_user),
    PageRoute("POST", "/console/users/{user}", update_user),
    PageRoute("POST", "/console/users/{user}/password", set_password),
    PageRoute("POST", "/console/users/{user}/delete", delete_user),
    PageRoute("POST", "/console/roles", create_role),
    PageRoute("POST", "/console/roles/{role}/delete", delete_role),
    PageRoute("GET", "/console/acls", show_acls),
    PageRoute("POST", "/console/acls", set_acl),
    PageRoute("POST", "/console/acls/{pattern}/delete", delete_acl),
)
