// A page that is served while a run goes on asks for new data once a second.

const EVERY = 1000;

function say(text, gone = false) {
  const line = document.getElementById("live");
  if (line.textContent !== text) line.textContent = text;
  line.hidden = !text;
  line.classList.toggle("gone", gone);
}

function follow() {
  let tag = null; // of the data that are shown: the server sends no others of the same name
  document.getElementById("kind").textContent = "watch";
  const ask = async () => {
    try {
      const answer = await fetch("data.json", { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
      if (answer.ok) {
        const data = await answer.json();
        tag = answer.headers.get("ETag");
        render(data);
      } else if (answer.status !== 304) throw new Error(answer.statusText);
      say(shown.note || (goesOn() ? "Live: the page follows the run." : "The run has ended; these are its final figures."));
    } catch {
      say("The server has gone: this is the last that it sent. Start freewheel watch again to go on.", true);
    }
    setTimeout(ask, EVERY);
  };
  ask();
}

function goesOn() {
  return [...shown.runs, ...shown.groups].some((each) => each.status.name === "running");
}
