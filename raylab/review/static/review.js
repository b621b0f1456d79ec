// Makes the forms live: keys, drafts saved while typing, the lease renewed while the tab is open,
// and what becomes of decisions that wait for the evaluator.
"use strict";

const PAUSE = 300; // milliseconds without typing before a draft is saved
const POLL = 2000; // milliseconds between two looks at decisions that wait
const form = document.getElementById("decision");
const single = document.getElementById("single-keys");

const isText = (element) => element.matches("textarea, input:not([type=radio], [type=checkbox])");

function act(element) {
  element.focus();
  if (!isText(element)) element.click();
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "Enter" && form) {
    event.preventDefault();
    form.requestSubmit(document.getElementById("send"));
  } else if (isText(event.target)) {
    if (event.key === "Escape") event.target.blur();
  } else if (!event.ctrlKey && !event.metaKey && !event.altKey && (!single || single.checked)) {
    const found = document.querySelectorAll(`[data-key="${CSS.escape(event.key)}"]`);
    const usable = [...found].filter((element) => !element.disabled);
    if (usable.length) event.preventDefault();
    usable.forEach(act);
  }
});

if (single) {
  single.checked = localStorage.getItem("single-keys") !== "off";
  single.addEventListener("change", () => {
    localStorage.setItem("single-keys", single.checked ? "on" : "off");
  });
}

// Replaces the parts of the state whose text has changed, so that only those are read out.
function show(html) {
  const parts = new DOMParser().parseFromString(html, "text/html").body.children;
  for (const part of [...parts]) {
    const old = document.getElementById(part.id);
    if (old.textContent !== part.textContent) old.replaceWith(part);
  }
}

function tell(text) {
  const line = document.createElement("p");
  line.className = "held";
  line.textContent = text;
  document.getElementById("kept").replaceChildren(line);
}

function post() {
  const body = new URLSearchParams(new FormData(form));
  return fetch(form.dataset.draft, { method: "POST", body, keepalive: true });
}

// After a new session the page's own token is out of date: a fresh copy of the page has the right one.
async function renewToken() {
  const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
  const token = page.querySelector("#decision [name=csrf]");
  if (token) document.querySelectorAll("[name=csrf]").forEach((old) => (old.value = token.value));
  return Boolean(token);
}

function touched() {
  const fields = [...form.querySelectorAll("input, textarea")];
  return fields.some((one) => one.checked !== one.defaultChecked || one.value !== one.defaultValue);
}

// Sends the form, which renews the lease whether or not anything was typed.
async function send() {
  try {
    let answer = await post();
    if (answer.status === 403 && (await renewToken())) answer = await post();
    if (answer.status === 401 || answer.status === 403) {
      tell("You are signed out. Sign in in another tab: your text stays here and is saved then.");
    } else if (answer.ok) {
      show(await answer.text());
      return true;
    } else {
      tell("Your text could not be saved. It stays here, and is tried again.");
    }
  } catch {
    tell("The page cannot be reached. Your text stays here, and is tried again.");
  }
  return false;
}

if (form) {
  let timer = 0;
  let edits = touched() ? 1 : 0; // Typed before this script was there.
  let saved = 0;
  let saving = Promise.resolve(true);

  // The server drops a text that a later edit has overtaken, and writes none where edit is 0: a
  // tab in which nothing was typed since never replaces what was typed on another device.
  const changed = () => edits !== saved;
  const number = () => (form.elements.edit.value = changed() ? edits : 0);
  const keep = () => {
    clearTimeout(timer);
    saving = saving.then(async () => {
      const sent = edits;
      number();
      const done = await send();
      if (done) saved = sent;
      number();
      return done;
    });
    return saving;
  };
  number();
  if (changed()) keep();

  form.addEventListener("input", () => {
    edits += 1;
    number();
    clearTimeout(timer);
    timer = setTimeout(keep, PAUSE);
  });
  setInterval(keep, (Number(form.dataset.seconds) * 1000) / 4);
  setInterval(() => changed() && keep(), 5000);
  document.addEventListener("visibilitychange", () => changed() && keep());
  window.addEventListener("pagehide", () => changed() && post());

  form.addEventListener("submit", async (event) => {
    if (event.submitter && event.submitter.id !== "send") return;
    event.preventDefault();
    if (form.hasAttribute("aria-busy")) return;
    form.setAttribute("aria-busy", "true");
    const done = await keep();
    if (done) {
      tell(form.dataset.sending);
      form.submit();
    } else {
      form.removeAttribute("aria-busy");
    }
  });
  window.addEventListener("pageshow", () => form.removeAttribute("aria-busy"));
}

// Shows what has become of decisions that wait, until none does. Only what has changed is read out.
const sent = document.getElementById("sent");

async function look() {
  const poll = sent.querySelector("[data-poll]");
  if (!poll) return;
  try {
    const answer = await fetch(poll.dataset.poll);
    if (answer.status === 401) return;
    if (answer.ok) showSent(new DOMParser().parseFromString(await answer.text(), "text/html").body);
  } catch {
    // The page cannot be reached: what it last said stays, and is asked for again.
  }
  setTimeout(look, POLL);
}

function showSent(body) {
  const fresh = body.firstElementChild;
  const waits = (fresh.dataset.cases || "").split(" ");
  const here = document.querySelector("[data-waiting]");
  // Nothing is typed on the page of a case that waits.
  if (here && !waits.includes(here.dataset.waiting)) location.reload();
  else if (fresh.textContent !== sent.firstElementChild.textContent) {
    const focused = sent.contains(document.activeElement);
    sent.replaceChildren(fresh);
    if (focused) sent.focus();
  }
}

if (sent) setTimeout(look, POLL);
