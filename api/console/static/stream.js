/* The stream of frames, and calls to the server. The stream is read with fetch and not with EventSource, which could
   send no key; when it ends it is opened again, at first soon, then every few seconds. */

let key = "";

export function setKey(value) { key = value.trim(); }

function headers(more = {}) { return key ? {authorization: `Bearer ${key}`, ...more} : more; }

export class CallError extends Error {}

/* Calls the HTTP API below console/v2. Gives back the response if it is a success. */
export async function call(path, body) {
  const given = {"x-trireme-console": "1"};
  if (body !== undefined) given["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(`console/v2${path}`, {
      method: body === undefined ? "GET" : "POST", headers: headers(given), body: body === undefined ? null : JSON.stringify(body),
      cache: "no-store", credentials: "same-origin",
    });
  } catch {
    throw new CallError("The server does not answer.");
  }
  if (response.ok) return response;
  throw new CallError(await reason(response));
}

async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error || text;
  } catch {
    return text || `The server answered with status ${response.status}.`;
  }
}

/* Reads events from a response's body until it ends. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const part = (name) => lines.filter((line) => line.startsWith(name)).map((line) => line.slice(name.length)).join("\n");
      yield {event: part("event: "), data: part("data: ")};
    }
  }
}

/* Keeps the stream open. `on` has about(data), frame(data), state(kind, text). */
export class Connection {
  constructor(on) {
    this.on = on;
    this.tries = 0;
    this.run();
  }

  /* Try at once, perhaps with another key. */
  again() {
    this.tries = 0;
    if (this.abort) this.abort.abort();
    if (this.wake) this.wake();
  }

  /* A fault of a view is told, and does not end the stream. */
  hand(event, data) {
    try {
      this.on[event](data);
    } catch (error) {
      console.error(error);
    }
  }

  async run() {
    for (;;) {
      let refused = false;
      this.abort = new AbortController();
      try {
        const response = await fetch("console/stream", {
          headers: headers(), cache: "no-store", credentials: "same-origin", signal: this.abort.signal,
        });
        if (response.ok) {
          for await (const {event, data} of events(response.body)) {
            this.tries = 0;
            if (event === "about" || event === "frame") this.hand(event, JSON.parse(data));
          }
        } else {
          refused = true;
          this.on.state(response.status === 401 || response.status === 403 ? "denied" : "refused", await reason(response));
        }
      } catch {
        // The network's errors say no more than that the connection is lost. Those of views are caught in `hand`.
      }
      const waits = Math.min(5000, 400 * 2 ** this.tries);
      this.tries += 1;
      if (!refused) this.on.state("lost", "The connection to the server is lost. What you see is from before; the page tries again.");
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, waits);
      });
    }
  }
}
