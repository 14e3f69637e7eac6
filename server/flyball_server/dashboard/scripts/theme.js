// Theme of the page: light, dark or system, and its colours for canvases.

import { hex } from "./clock_scale.js";

const KEY = "flyball-theme";
const CHOICES = ["system", "light", "dark"];

/** Let a button switch between the themes. @param {HTMLButtonElement} button */
export function bindThemeButton(button) {
  const show = () => {
    button.textContent = `Theme: ${chosenTheme()}`;
  };
  button.addEventListener("click", () => {
    choose(CHOICES[(CHOICES.indexOf(chosenTheme()) + 1) % CHOICES.length]);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  show();
}

/** @returns {string} `system`, `light` or `dark` */
function chosenTheme() {
  return document.documentElement.dataset.theme ?? "system";
}

/** @param {string} theme */
function choose(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // Without storage it holds until the page is left.
  }
  tell();
}

/** Announce a change to canvases. */
function tell() {
  document.dispatchEvent(new CustomEvent("themechange"));
}

/**
 * Return the current values of tokens as `#rrggbb`; two more digits make them transparent.
 * @template {string} Name
 * @param {...Name} names of `styles/tokens.css`, without the dashes: `text-muted`
 * @returns {Record<Name, string>}
 */
export function themeColors(...names) {
  // A token has a light and a dark colour: the computed one is read from an element.
  const probe = document.createElement("span");
  document.documentElement.append(probe);
  const colors = names.map((name) => {
    probe.style.color = `var(--${name}, #808080)`;
    return [name, hex((getComputedStyle(probe).color.match(/\d+/g) ?? []).map(Number))];
  });
  probe.remove();
  return Object.fromEntries(colors);
}

