// Search over an index that comes with the site, and the choice of dark or light. Nothing is asked of anybody else.
"use strict";

const root = document.currentScript ? document.currentScript.dataset.root : document.querySelector("script[data-root]").dataset.root;
const box = document.getElementById("search");
const list = document.getElementById("results");

// --- dark and light

function remembered() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null; // A page from the disk may have no storage; it follows the system then.
  }
}

const theme = remembered();
if (theme) document.documentElement.dataset.theme = theme;

document.getElementById("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("theme", next);
  } catch (fault) {
    console.info("the choice is not remembered", fault.name);
  }
});

// --- search

let loading = null;

function index() {
  // Loaded when somebody searches for the first time.
  loading ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = `${root}/search-index.js`;
    script.onload = () => done(window.SEARCH_INDEX);
    script.onerror = failed;
    document.head.append(script);
  });
  return loading;
}

function score(entry, words) {
  const [, title, , heading, text] = entry.map((part) => part.toLowerCase());
  let points = 0;
  for (const word of words) {
    const found = (heading.includes(word) ? 8 : 0) + (title.includes(word) ? 4 : 0) + (text.includes(word) ? 1 : 0);
    if (!found) return 0;
    points += found;
  }
  return points;
}

function piece(text, words) {
  const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 60);
  return (at ? "..." : "") + text.slice(at, at + 180);
}

async function search() {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) {
    list.hidden = true;
    return;
  }
  const found = (await index()).map((entry) => [score(entry, words), entry]).filter(([points]) => points > 0);
  found.sort((a, b) => b[0] - a[0]);
  list.replaceChildren(
    ...found.slice(0, 20).map(([, [page, title, anchor, heading, text]]) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = `${root}/${page}#${anchor}`;
      link.textContent = heading === title ? title : `${title}: ${heading}`;
      const some = document.createElement("p");
      some.textContent = piece(text, words);
      item.append(link, some);
      return item;
    }),
  );
  if (!found.length) list.append(Object.assign(document.createElement("li"), { textContent: "Nothing found." }));
  list.hidden = false;
}

box.addEventListener("input", search);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== box) {
    event.preventDefault();
    box.focus();
  }
  if (event.key === "Escape") {
    box.value = "";
    search();
  }
});
