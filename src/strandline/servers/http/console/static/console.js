// The console's script. Without it every page works, but does not update itself.
"use strict";

// Replace an element's content by another's, changing only what differs, so that the keyboard's focus,
// opened details and the selection stay.
function morph(old, fresh) {
  const kept = [...old.childNodes];
  const wanted = [...fresh.childNodes];
  const byKey = new Map(kept.filter((n) => n.dataset?.key).map((n) => [n.dataset.key, n]));
  wanted.forEach((want, index) => {
    const at = old.childNodes[index];
    const have = want.dataset?.key ? byKey.get(want.dataset.key) : at;
    if (!have || have.nodeName !== want.nodeName
        || (have.dataset?.key ?? "") !== (want.dataset?.key ?? "")) {
      old.insertBefore(want, at ?? null);
    } else {
      if (have !== at) old.insertBefore(have, at ?? null);
      if (have.nodeType === Node.ELEMENT_NODE) morphElement(have, want);
      else if (have.nodeValue !== want.nodeValue) have.nodeValue = want.nodeValue;
    }
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

function morphElement(have, want) {
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
  for (const { name } of [...have.attributes]) {
    if (!want.hasAttribute(name) && name !== "open") have.removeAttribute(name);
  }
  if (!have.matches("input, select, textarea")) morph(have, want);
}

async function load(address) {
  const answer = await fetch(address, { credentials: "same-origin" });
  if (answer.redirected && new URL(answer.url).pathname === "/login") {
    location.assign(answer.url);
  }
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function take(page) {
  for (const region of document.querySelectorAll("[data-live]")) {
    const fresh = page.querySelector(`[data-live="${region.dataset.live}"]`);
    if (fresh) morph(region, fresh);
  }
}

function status(text) {
  const line = document.querySelector("#updates");
  if (line && line.textContent !== text) line.textContent = text;
}

// Reload live regions regularly, less often if an answer takes long.
async function follow() {
  let pause = 2000;
  for (;;) {
    await new Promise((done) => setTimeout(done, pause));
    if (document.hidden) continue;
    const began = performance.now();
    try {
      const address = location.href;
      const page = await load(address);
      if (address === location.href) take(page);
      status("");
    } catch {
      status("The broker does not answer; trying again.");
    }
    pause = Math.min(30000, Math.max(2000, 20 * (performance.now() - began)));
  }
}

// Search while the user types.
function searchWhileTyping(form) {
  let timer = 0;
  const search = async () => {
    const address = `${form.action.split("?")[0]}?${new URLSearchParams(new FormData(form))}`;
    history.replaceState(null, "", address);
    take(await load(address));
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, 200);
  });
}

// The live tail: fetch the records after those shown.
function tail(table) {
  const rows = table.tBodies[0];
  const button = document.querySelector("#tail-pause");
  const line = document.querySelector("#tail-status");
  let positions = table.dataset.positions;
  let paused = false;
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Continue" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
    line.textContent = paused ? "paused" : "waiting for records";
  });
  const ask = async () => {
    if (!paused && !document.hidden) {
      const address = new URL(table.dataset.tail, location.href);
      address.searchParams.set("positions", positions);
      try {
        const answer = await fetch(address, { headers: { Accept: "application/json" } });
        const found = await answer.json();
        if (!answer.ok) throw new Error(found.error);
        positions = found.positions;
        const parsed = new DOMParser().parseFromString(`<table>${found.rows}</table>`, "text/html");
        const fresh = [...(parsed.querySelector("table").tBodies[0]?.rows ?? [])];
        rows.prepend(...fresh);
        while (rows.children.length > 500) rows.lastElementChild.remove();
        if (fresh.length) line.textContent = `${fresh.length} new`;
        else if (line.textContent !== "waiting for records") line.textContent = "waiting for records";
      } catch (error) {
        line.textContent = error.message || "the broker does not answer; trying again";
      }
    }
    setTimeout(ask, 1000);
  };
  ask();
}

document.querySelectorAll("form[data-search]").forEach(searchWhileTyping);
document.querySelectorAll("table[data-tail]").forEach(tail);
if (document.querySelector("[data-live]")) follow();
