// The page of the API: searching it, opening what a link leads to, and trying requests. Answers become text, never markup.
"use strict";

(() => {
  const SHOWN_CHARACTERS = 200_000;

  // --- searching

  const narrow = document.getElementById("narrow");
  const parts = [...document.querySelectorAll(".part")];
  narrow.addEventListener("input", () => {
    const words = narrow.value.toLowerCase().split(/\s+/).filter(Boolean);
    let any = false;
    for (const part of parts) {
      let some = false;
      for (const each of part.querySelectorAll("details.operation")) {
        const text = each.querySelector("summary").textContent.toLowerCase();
        each.hidden = !words.every((word) => text.includes(word));
        some ||= !each.hidden;
      }
      part.hidden = !some;
      any ||= some;
    }
    document.getElementById("none").hidden = any;
  });

  // --- links within the page

  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target?.matches("details")) {
      target.open = true;
      target.hidden = target.closest(".part").hidden = false;
      target.scrollIntoView({ block: "start" });
      target.querySelector("summary").focus();
    }
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  // --- trying

  const addressOf = (form) => {
    const query = new URLSearchParams();
    let path = form.dataset.path;
    for (const [name, value] of new FormData(form)) {
      if (name.startsWith("path.")) path = path.replace(`{${name.slice(5)}}`, () => encodeURIComponent(value));
      else if (name.startsWith("query.") && value) query.set(name.slice(6), value);
    }
    return query.size ? `${path}?${query}` : path;
  };

  const pretty = (text) => {
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch (_noJson) {
      return text;
    }
  };

  for (const form of document.querySelectorAll("form.try")) {
    const outcome = form.nextElementSibling;
    const [line, body] = [outcome.querySelector("p"), outcome.querySelector("pre")];
    const stop = form.querySelector("[data-stop]");
    let asking = null;
    stop?.addEventListener("click", () => asking?.abort());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      asking?.abort();
      const mine = (asking = new AbortController());
      const address = addressOf(form);
      outcome.hidden = false;
      body.textContent = "";
      line.textContent = `GET ${address} ...`;
      if (stop) stop.hidden = false;
      try {
        // The header says that a page asks, so that the browser does not ask for a password by itself.
        const answer = await fetch(address, { headers: { "HX-Request": "true" }, signal: mine.signal });
        line.textContent = `GET ${address}: ${answer.status}, ${answer.headers.get("content-type") || "no body"}`;
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let text = ""; ; ) {
          const { value, done } = await reader.read();
          text += value || "";
          const cut = text.length > SHOWN_CHARACTERS;
          if (done || stop || cut) body.textContent = cut ? `${text.slice(0, SHOWN_CHARACTERS)}\n... more than is shown here` : done ? pretty(text) : text;
          if (done || cut) break;
        }
        mine.abort();
      } catch (fault) {
        if (fault.name !== "AbortError") line.textContent = `GET ${address}: ${fault.message}`;
        else if (asking === mine) line.textContent += ", stopped";
      } finally {
        if (stop && asking === mine) stop.hidden = true;
      }
    });
    addEventListener("pagehide", () => asking?.abort());
  }
})();
