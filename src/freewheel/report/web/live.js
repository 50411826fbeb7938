// A page that is served while a run goes on asks for new data once a second.

const EVERY = 1000;

function say(text, gone = false) {
  const line = document.getElementById("live");
  if (line.textContent !== text) line.textContent = text;
  line.hidden = !text;
  line.classList.toggle("gone", gone);
}

function follow() {
  let last = null;
  document.getElementById("kind").textContent = "watch";
  const ask = async () => {
    try {
      const answer = await fetch("data.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const text = await answer.text();
      if (text !== last) render(JSON.parse((last = text)));
      const goesOn = [...shown.runs, ...shown.groups].some((each) => each.status.name === "running");
      say(goesOn ? "Live: the page follows the run." : "The run has ended; these are its final figures.");
    } catch {
      say("The server has gone: this is the last that it sent. Start freewheel watch again to go on.", true);
    }
    setTimeout(ask, EVERY);
  };
  ask();
}
