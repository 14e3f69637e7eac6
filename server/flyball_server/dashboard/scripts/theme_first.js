// Puts the chosen theme on the page before anything is drawn; a module would come too late.

(() => {
  try {
    const theme = localStorage.getItem("flyball-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is closed to this page: the system's theme holds.
  }
})();
