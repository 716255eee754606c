// Starts the page: asks for the token where there is none, and shows the view that the address names.

import { Problem, takeTokenFromAddress, token } from "./api.js";
import { h } from "./dom.js";
import { showExperiment } from "./experiment.js";
import { showExperiments } from "./experiments.js";
import { showProfiles } from "./profiles.js";

const main = document.querySelector("#main");
const signOut = document.querySelector("#sign-out");
let leave = new AbortController();

const ROUTES = [
  [/^#\/experiments\/([^/]+)$/, "Experiment", showExperiment],
  [/^#\/experiments$/, "Experiments", showExperiments],
  [/^/, "Profiles", showProfiles],
];

function askForToken(message) {
  signOut.hidden = true;
  const input = h("input", {
    id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false",
    "aria-describedby": "token-help",
  });
  const form = h("form", { class: "card narrow", "aria-labelledby": "token-title" },
    h("h1", { id: "token-title" }, "Paste the token"),
    h("p", { id: "token-help", class: "muted" },
      "The file that ", h("code", null, "paceline up"),
      " names as the token file holds it. It is kept for this tab only."),
    message ? h("p", { class: "notice error", role: "alert" }, message) : null,
    h("label", { for: "token" }, "Token"), input,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, "Continue")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    show();
  });
  main.replaceChildren(form);
  input.focus();
}

export function fail(error) {
  if (error.name === "AbortError") return;
  if (error instanceof Problem && error.status === 401) {
    token.forget();
    askForToken("That token is not the right one. The control API may have been started anew since.");
    return;
  }
  main.replaceChildren(
    h("div", { class: "card narrow" },
      h("h1", null, "This could not be shown"),
      h("p", { class: "notice error", role: "alert" }, error.message),
      h("div", { class: "actions" }, h("button", { type: "button", class: "primary", onclick: show }, "Try again"))),
  );
}

async function show() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  if (!token.get()) return askForToken();
  const [pattern, title, view] = ROUTES.find(([route]) => route.test(location.hash));
  document.title = `${title} – Paceline`;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === "#/experiments" ? title.startsWith("Experiment") : title === "Profiles";
    link.toggleAttribute("aria-current", here);
    if (here) link.setAttribute("aria-current", "page");
  }
  signOut.hidden = false;
  try {
    await view(main, signal, pattern.exec(location.hash)[1], (error) => signal.aborted || fail(error));
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
}

signOut.addEventListener("click", () => {
  leave.abort();
  token.forget();
  askForToken();
});
takeTokenFromAddress();
addEventListener("hashchange", () => {
  takeTokenFromAddress();
  show().then(() => main.focus({ preventScroll: true }));
});
show();
