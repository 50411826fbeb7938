// Light and dark: what the system asks for, until the reader chooses.

const dark = matchMedia("(prefers-color-scheme: dark)");
const themed = new Set(); // functions that draw anew with other colours
let chosen = null;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function seriesColours() {
  return colour("series").split(" ");
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = name === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Show the page ${name === "dark" ? "light" : "dark"}`);
  button.removeAttribute("aria-pressed");
  for (const draw of themed) draw();
}

function wantedTheme() {
  return chosen ?? (dark.matches ? "dark" : "light");
}

document.getElementById("theme").addEventListener("click", () => {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(chosen);
});
dark.addEventListener("change", () => setTheme(wantedTheme()));
addEventListener("beforeprint", () => setTheme("light"));
addEventListener("afterprint", () => setTheme(wantedTheme()));
