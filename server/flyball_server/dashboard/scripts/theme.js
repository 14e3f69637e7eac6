// Light, dark or as the system has it; tells canvases by `themechange` when their colours change.

const KEY = "flyball-theme";
const CHOICES = ["system", "light", "dark"];

/**
 * Let a button go round the themes.
 * @param {HTMLButtonElement} button
 */
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
    // It holds until the page is left.
  }
  tell();
}

function tell() {
  document.dispatchEvent(new CustomEvent("themechange"));
}
