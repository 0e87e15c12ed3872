"""The rules of this repository, as functions that look at source and complain.

Each one takes a path below the root and the text of that file (or of all files) and returns complaints, one line each. None
of them touches the disk, so `test_tidy.py` can feed each one a bad snippet and see that it notices.
"""

from __future__ import annotations

import ast
import functools
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

PACKAGE = "src/braidmq/"
LINES_MAX = 600

RANKS = {
    "base": 0, "hot": 1, "wire": 2, "log": 3, "security": 4, "schemas": 4, "broker": 5, "cluster": 6, "server": 7, "client": 7,
    "admin": 8, "spark": 8, "sim": 8, "cli": 9, "testing": 9,
}  # fmt: skip
"""Imports go from a layer to itself or to one of lower rank."""
CLIENT_MAY_IMPORT = {"client", "log", "wire", "hot", "base"}
"""The client runs on machines without a broker."""

FILES_ALLOWED = {
    PACKAGE + "base/clock.py": "it asks the system which run of the machine this is",
    PACKAGE + "base/disk_real.py": "it is the disk",
    PACKAGE + "cluster/etcd_process.py": "it looks for a program",
    PACKAGE + "base/config.py": "it reads the configuration, which exists before any data directory does",
}
FILE_CALLS = {
    "open", "io.open", "os.open", "os.fdopen", "os.mkdir", "os.makedirs", "os.rename", "os.replace", "os.unlink", "os.remove",
    "os.rmdir", "os.listdir", "os.scandir", "os.walk", "os.stat", "os.truncate", "os.fsync", "os.fdatasync", "os.path.exists",
    "os.path.isfile", "os.path.isdir", "os.path.getsize",
}  # fmt: skip
FILE_MODULES = {"pathlib", "shutil", "mmap", "tempfile", "glob", "fcntl"}
CLOCK_MODULE = PACKAGE + "base/clock.py"
CLOCK_CALLS = {
    "time.time", "time.time_ns", "time.clock_gettime", "time.clock_gettime_ns", "time.monotonic", "time.monotonic_ns",
    "time.perf_counter", "time.perf_counter_ns",
    "datetime.now", "datetime.utcnow", "datetime.today", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today",
    "date.today",
}  # fmt: skip
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SOCKETS_ALLOWED = {
    PACKAGE + "cluster/link.py": "it is the network",
    PACKAGE + "cluster/transport_tcp.py": "it is the network",
    PACKAGE + "cluster/cluster_tls.py": "it makes the keys of the network",
    PACKAGE + "cluster/etcd_client.py": "it asks etcd",
    PACKAGE + "cluster/etcd_http.py": "it asks etcd",
    PACKAGE + "cluster/membership/gossip_udp.py": "it is the network of gossip",
    PACKAGE + "cluster/membership/mdns.py": "it asks the local network",
}
"""Cluster code that the simulator does not run; everything else there talks through `Transport`."""
NETWORK_MODULES = {"asyncio", "socket", "ssl", "selectors", "socketserver", "uvloop", "anyio", "trio"}


# --- reading source


@functools.cache
def parsed(path: str, source: str) -> ast.Module:
    """Read once for all rules, none of which changes it; `forget` lets go of it."""
    return ast.parse(source, path)


@functools.cache
def nodes(path: str, source: str) -> tuple[ast.AST, ...]:
    """Everything in a module."""
    return tuple(ast.walk(parsed(path, source)))


def forget() -> None:
    """Let go of all that was read: the whole tree takes room, and time of every garbage collection."""
    parsed.cache_clear()
    nodes.cache_clear()


def layer_of(path: str) -> str | None:
    """The layer a module belongs to; None for files outside the package and for those at its top."""
    if not path.startswith(PACKAGE):
        return None
    first, _, rest = path.removeprefix(PACKAGE).partition("/")
    return first if rest else None


def imported_modules(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module imports, wherever in it; for `from a import b` both `a` and `a.b`."""
    if path.endswith(".pyx"):
        for number, line in enumerate(source.splitlines(), 1):
            found = re.match(r"\s*(?:from\s+([\w.]+)\s+c?import\s+([\w, ]+)|c?import\s+([\w.]+))", line)
            if found:
                module = found[1] or found[3]
                yield number, module
                for name in (found[2] or "").replace(",", " ").split():
                    yield number, f"{module}.{name}"
        return
    package = list(PurePosixPath(path.removeprefix("src/")).parent.parts)
    for node in nodes(path, source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield node.lineno, module
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def dotted(node: ast.expr) -> str:
    """`a.b.c` for an expression of that form, else the empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def identifiers(path: str, source: str) -> Counter[str]:
    """How often each name is used in a file. Definitions, docstrings and comments are no use; an import is."""
    if not path.endswith(".py"):
        return Counter(re.findall(r"\b[A-Za-z_]\w*\b", source))
    return _identifiers_below(parsed(path, source))


def _identifiers_below(root: ast.AST) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in ast.walk(root):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute):
            found[node.attr] += 1
        elif isinstance(node, ast.alias):
            found[node.name.rpartition(".")[2]] += 1
        elif isinstance(node, ast.keyword) and node.arg:
            found[node.arg] += 1
    return found


# --- layers, disk, clock


def check_layers(path: str, source: str) -> list[str]:
    """Imports point downwards only."""
    layer = layer_of(path)
    if layer is None:
        return []
    if layer not in RANKS:
        return [f"{path}: `{layer}` is not a layer"]
    complaints = []
    for line, module in imported_modules(path, source):
        target = module.split(".")[1] if module.startswith("braidmq.") else None
        if target not in RANKS or target == layer:
            continue
        if RANKS[target] >= RANKS[layer] or (layer == "client" and target not in CLIENT_MAY_IMPORT):
            complaints.append(f"{path}:{line}: {layer} imports {module}")
    return sorted(set(complaints))


def check_pure_wire(path: str, source: str) -> list[str]:
    """Codecs know bytes, not sockets; storage and logic know no sockets either."""
    layer = layer_of(path)
    logic = layer in ("log", "security", "broker") or (layer == "cluster" and path not in SOCKETS_ALLOWED)
    sockets = {"socket", "ssl", "selectors"} if logic else set()
    forbidden = NETWORK_MODULES if layer == "wire" else sockets
    found = [(line, module) for line, module in imported_modules(path, source) if module.split(".")[0] in forbidden]
    return [f"{path}:{line}: {layer} imports {module}" for line, module in found]


def check_disk_is_given(path: str, source: str) -> list[str]:
    """Only the disk opens files, wherever data passes."""
    layers = ("base", "hot", "wire", "log", "security", "broker", "cluster")
    if layer_of(path) not in layers or path in FILES_ALLOWED or not path.endswith(".py"):
        return []
    modules = [(line, name) for line, name in imported_modules(path, source) if name in FILE_MODULES]
    complaints = [f"{path}:{line}: imports {name}; ask the Disk" for line, name in modules]
    for node in nodes(path, source):
        if isinstance(node, ast.Call) and dotted(node.func) in FILE_CALLS:
            complaints.append(f"{path}:{node.lineno}: calls {dotted(node.func)}; ask the Disk")
    return complaints


def check_clock_is_given(path: str, source: str) -> list[str]:
    """Only the clock reads the time, wherever the broker's logic runs."""
    layers = ("base", "hot", "wire", "log", "security", "broker", "cluster", "server", "sim")
    if layer_of(path) not in layers or path == CLOCK_MODULE:
        return []
    if not path.endswith(".py"):
        return []
    complaints = []
    for node in nodes(path, source):
        if isinstance(node, ast.Attribute) and dotted(node) in CLOCK_CALLS:
            complaints.append(f"{path}:{node.lineno}: reads {dotted(node)}; ask the Clock")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names = {f"time.{alias.name}" for alias in node.names} & (CLOCK_CALLS | {"time.*"})
            complaints += [f"{path}:{node.lineno}: imports {name}; ask the Clock" for name in sorted(names)]
    return complaints


# --- shape of files


def check_length(path: str, source: str) -> list[str]:
    """A long file says at its top why it is long."""
    lines = source.splitlines()
    if len(lines) <= LINES_MAX or any(re.match(r"# long file: \S+", line) for line in lines[:10]):
        return []
    return [f"{path}: {len(lines)} lines; split it, or say why not in a line `# long file: <reason>` at the top"]


def check_names(path: str, source: str) -> list[str]:
    """A name says what a thing is."""
    place = PurePosixPath(path)
    empty = re.compile(r"^(utils?|helpers?|common|misc)$|manager")
    complaints = [f"{path}: `{part}` says nothing" for part in (*place.parent.parts, place.stem) if empty.search(part)]
    if path.endswith(".py"):
        for node in nodes(path, source):
            if isinstance(node, _DEFINITIONS) and re.search(r"[Mm]anager|Helper|Utils?$", node.name):
                complaints.append(f"{path}:{node.lineno}: `{node.name}` says nothing")
    return complaints


def check_no_notes(path: str, source: str) -> list[str]:
    """Work is done or it is not in the tree."""
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    return [f"{path}:{number}: a note instead of work" for number, line in enumerate(source.splitlines(), 1) if marks.search(line)]


def check_no_swallowing(path: str, source: str) -> list[str]:
    """An exception is handled, or it goes on."""
    complaints = []
    for node in nodes(path, source):
        if isinstance(node, ast.ExceptHandler) and all(_does_nothing(statement) for statement in node.body):
            complaints.append(f"{path}:{node.lineno}: swallows an exception")
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            complaints.append(f"{path}:{node.lineno}: a bare except")
        elif isinstance(node, ast.Call) and dotted(node.func) in ("contextlib.suppress", "suppress"):
            broad = {dotted(argument) for argument in node.args} & {"Exception", "BaseException"}
            complaints += [f"{path}:{node.lineno}: suppresses every {name}" for name in sorted(broad)]
    return complaints


def _does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


def check_docstring(path: str, source: str) -> list[str]:
    """Every module says why it exists."""
    if path.endswith(".py") and not ast.get_docstring(parsed(path, source)):
        return [f"{path}: no docstring"]
    return []


def check_no_places(path: str, source: str) -> list[str]:
    """Nothing depends on, or tells of, one machine or one package index."""
    patterns = {
        "a path of one machine": r"(?<![\w.~$}/])/(?:home|root|Users|work|opt|tmp)/(?!someone\b)\w",
        "a package index": (
            r"(?i)\b(?:pypi\.org|pythonhosted\.org|artifactory|jfrog|nexus|devpi)\b|\b(?:extra-)?index-url\b|--find-links\b|/simple/"
        ),
    }
    complaints = []
    for number, line in enumerate(source.splitlines(), 1):
        for what, pattern in patterns.items():
            found = re.search(pattern, line)
            if found:
                complaints.append(f"{path}:{number}: {what}: {found[0]}")
    return complaints


# --- the whole tree


def check_links(path: str, source: str, existing: Iterable[str]) -> list[str]:
    """Every link from one page to another file leads somewhere."""
    complaints = []
    for number, line in enumerate(source.splitlines(), 1):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", line):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if "://" not in target and place not in existing:
                complaints.append(f"{path}:{number}: leads nowhere: {target}")
    return complaints


def check_nothing_dead(files: Mapping[str, str], allowed: Iterable[str]) -> list[str]:
    """Every function and class at the top of a module is used outside its own definition, and every module is imported.

    Names are compared without scopes, so a dead function may hide behind a living namesake; what is reported is dead.
    `allowed` lists `path:name` of what something outside the tree uses. An entry that is not needed is reported too.
    """
    used: Counter[str] = Counter()
    imported: set[str] = set()
    for path, source in files.items():
        used.update(identifiers(path, source))
        if path.endswith((".py", ".pyx")):
            imported.update(module for _, module in imported_modules(path, source))
    complaints = []
    unneeded = set(allowed)
    for path, source in files.items():
        if not path.startswith(PACKAGE) or not path.endswith(".py"):
            continue
        module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        if not module.endswith(("__init__", "__main__")) and module not in imported:
            complaints.append(f"{path}: nothing imports it")
        for node in parsed(path, source).body:
            if not isinstance(node, _DEFINITIONS):
                continue
            if used[node.name] > _identifiers_below(node)[node.name]:
                continue
            if f"{path}:{node.name}" in unneeded:
                unneeded.discard(f"{path}:{node.name}")
            elif f"{path}:{node.name}" not in allowed:
                complaints.append(f"{path}:{node.lineno}: nothing uses `{node.name}`")
    return complaints + [f"allowed without need: {entry}" for entry in sorted(unneeded)]


def check_limits_are_tested(limits_source: str, tests: Mapping[str, str]) -> list[str]:
    """Every limit has a test that names it. Units are not limits."""
    named: set[str] = set()
    for path, source in tests.items():
        named.update(identifiers(path, source))
    declared = [node.target for node in ast.parse(limits_source).body if isinstance(node, ast.AnnAssign)]
    limits = [target.id for target in declared if isinstance(target, ast.Name)]
    return [f"no test names the limit {name}" for name in limits if name not in named and not re.fullmatch("[KMGT]IB", name)]


def error_codes(errors_source: str) -> set[str]:
    """The codes of the table: first arguments of its rows."""
    calls = [node for node in ast.walk(ast.parse(errors_source)) if isinstance(node, ast.Call)]
    firsts = [call.args[0] for call in calls if dotted(call.func) == "ErrorSpec" and call.args]
    return {str(first.value) for first in firsts if isinstance(first, ast.Constant)}


def check_errors_are_raised(errors_source: str, files: Mapping[str, str]) -> list[str]:
    """Every code of the table is raised somewhere, and every code raised is in the table.

    A code counts as raised where it stands for a value: not where it is compared with, nor in a set or as a key to look up.
    """
    codes = error_codes(errors_source)
    raised: set[str] = set()
    complaints = []
    for path, source in files.items():
        if path.endswith(".pyx"):
            raised.update(code for code in codes if f'BraidError("{code}"' in source)
            continue
        for node in _outside_comparisons(parsed(path, source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                raised.add(node.value)
            if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "BraidError" and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value not in codes:
                    complaints.append(f"{path}:{node.lineno}: `{first.value}` is not in the table of errors")
    return complaints + [f"nothing raises {code}" for code in sorted(codes - raised)]


def _outside_comparisons(root: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(root):
        if isinstance(node, ast.Compare | ast.Set | ast.MatchValue | ast.Subscript):
            continue
        yield node
        yield from _outside_comparisons(node)
