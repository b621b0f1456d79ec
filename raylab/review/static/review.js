// Makes the forms live: keys, drafts kept in this browser while typing, and the heartbeats by which
// a case stays with its reviewer while the tab is open.
"use strict";

const PAUSE = 300; // milliseconds without typing before the server reads a code
const form = document.getElementById("decision");
const single = document.getElementById("single-keys");
const drafts = document.querySelector("[data-drafts]").dataset.drafts;
const FIELDS = ["choice", "code", "justification", "insist"];

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
    const bound = document.querySelectorAll(`[data-key="${CSS.escape(event.key)}"]`);
    const usable = [...bound].filter((element) => !element.disabled);
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

// Drafts

for (const tag of document.querySelectorAll("[data-drafted]")) {
  tag.hidden = localStorage.getItem(drafts + tag.dataset.drafted) === null;
}
for (const notice of document.querySelectorAll("[data-done]")) {
  localStorage.removeItem(drafts + notice.dataset.done);
}

function tell(id, text) {
  const line = document.createElement("p");
  if (id === "held") line.className = "held";
  line.textContent = text;
  document.getElementById(id).replaceChildren(...(text ? [line] : []));
}

function filled() {
  const typed = new FormData(form);
  return Object.fromEntries(FIELDS.map((name) => [name, typed.get(name) || ""]));
}

function touched() {
  const fields = [...form.querySelectorAll("input, textarea")];
  return fields.some((one) => one.checked !== one.defaultChecked || one.value !== one.defaultValue);
}

function save() {
  const typed = filled();
  const key = drafts + form.dataset.case;
  if (Object.values(typed).some(Boolean)) localStorage.setItem(key, JSON.stringify(typed));
  else localStorage.removeItem(key);
  tell("kept", "Draft kept in this browser.");
}

function restore() {
  const draft = localStorage.getItem(drafts + form.dataset.case);
  if (draft === null) return;
  const typed = JSON.parse(draft);
  for (const field of form.querySelectorAll("input, textarea")) {
    if (!FIELDS.includes(field.name)) continue;
    if (field.type === "radio" || field.type === "checkbox") {
      field.checked = !field.disabled && field.value === typed[field.name];
    } else field.value = typed[field.name] || "";
  }
  tell("kept", "Draft restored from this browser.");
}

// The case and its code

// Replaces the parts of the state whose text has changed, so that only those are read out.
function show(html) {
  const parts = new DOMParser().parseFromString(html, "text/html").body.children;
  for (const part of [...parts]) {
    const old = document.getElementById(part.id);
    if (old.textContent !== part.textContent) old.replaceWith(part);
  }
}

// Renews the lease, and has the server read the code.
async function keep() {
  try {
    const body = new URLSearchParams(new FormData(form));
    const answer = await fetch(form.dataset.keep, { method: "POST", body });
    if (answer.status === 401) {
      tell("held", "You are signed out. Sign in in another tab: your text stays here.");
    } else if (answer.ok) show(await answer.text());
    else tell("held", "The page failed. Your text stays here.");
  } catch {
    tell("held", "The page cannot be reached. Your text stays here.");
  }
}

if (form) {
  let timer = 0;
  if (touched()) save(); // Typed before this script was there.
  else if (!document.querySelector("[aria-invalid], [role=alert]")) restore();
  if (form.elements.code.value) keep();

  form.addEventListener("input", (event) => {
    save();
    if (["code", "choice"].includes(event.target.name)) {
      clearTimeout(timer);
      timer = setTimeout(keep, PAUSE);
    }
  });
  setInterval(keep, (Number(form.dataset.seconds) * 1000) / 4);

  form.addEventListener("submit", (event) => {
    if (event.submitter && event.submitter.id !== "send") return;
    if (form.hasAttribute("aria-busy")) event.preventDefault();
    form.setAttribute("aria-busy", "true");
  });
  window.addEventListener("pageshow", () => form.removeAttribute("aria-busy"));
}
