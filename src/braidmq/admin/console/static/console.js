// What the pages cannot do without a script: the theme, keys, live plots, live tails. Each page works without it.
"use strict";

(() => {
  // --- dark and light

  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

  document.getElementById("theme")?.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    document.cookie = `braid_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
    document.dispatchEvent(new Event("braid:theme"));
  });

  // --- keys

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const field = document.querySelector("[data-search]");
      if (field) {
        event.preventDefault();
        field.focus();
        field.select();
      }
    } else if (event.key === "Escape") {
      const open = event.target.closest?.("details.confirm[open]");
      if (open) {
        open.open = false;
        open.querySelector("summary").focus();
      }
    }
  });

  // A row that leads somewhere may be clicked anywhere; its link is for the keyboard.
  document.addEventListener("click", (event) => {
    const row = event.target.closest?.("tr[data-href]");
    if (row && !event.target.closest("a, button, input, summary, label") && !String(getSelection())) location.href = row.dataset.href;
  });

  // --- parts that keep themselves up to date

  const polls = (element) => (element.getAttribute("hx-trigger") || "").startsWith("every");
  document.addEventListener("htmx:beforeRequest", (event) => {
    const element = event.detail.elt;
    // Nobody looks at a hidden page, and what somebody is working in must not be taken away.
    if (polls(element) && (document.hidden || element.contains(document.activeElement) || element.querySelector("details[open]"))) {
      event.preventDefault();
    }
  });
  const offline = document.getElementById("offline");
  document.addEventListener("htmx:sendError", () => (offline.hidden = false));
  document.addEventListener("htmx:afterOnLoad", () => (offline.hidden = true));
  document.addEventListener("htmx:beforeSwap", (event) => {
    // A part that cannot be had any more must not replace what is there; an action says why it failed.
    if (event.detail.isError && event.detail.target.id !== "notice") {
      const notice = document.getElementById("notice");
      if (polls(event.detail.requestConfig.elt)) event.detail.shouldSwap = false;
      else if (notice) {
        event.detail.target = notice;
        event.detail.swapOverride = "innerHTML";
        event.detail.selectOverride = "unset";
      }
    }
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    // A search is part of the address, so that a page can be loaded again and passed on.
    const { elt, successful, pathInfo } = event.detail;
    if (successful && elt.matches("[data-search]")) history.replaceState(null, "", pathInfo.finalRequestPath);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "notice") event.detail.target.scrollIntoView({ block: "nearest" });
  });
})();
