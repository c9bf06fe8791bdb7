// Requests to the server that sent this page. An aborted signal ends them, and with them the work of the server.

export class Failure extends Error {
  constructor(title, detail = "") {
    super(title);
    this.detail = detail;
  }
}

export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  return `api/${path}?${query}`;
}

export async function get(path, parameters, signal) {
  let response;
  try {
    response = await fetch(address(path, parameters), { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer", "Is dask-tfrecord view still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  throw new Failure(answer.error?.title ?? `Error ${response.status}`, answer.error?.detail ?? "");
}

// Follow server-sent events until the last one, an error or the signal. `receive` gets each parsed message.
export function follow(path, parameters, signal, receive, failed) {
  if (signal.aborted) return () => {};
  const source = new EventSource(address(path, parameters));
  const close = () => source.close();
  signal.addEventListener("abort", close, { once: true });
  source.addEventListener("message", (event) => {
    const message = JSON.parse(event.data);
    if (message.error) {
      close();
      failed(new Failure(message.error.title, message.error.detail));
      return;
    }
    if (message.done) close();
    receive(message);
  });
  let opened = false;
  source.addEventListener("open", () => (opened = true));
  source.addEventListener("error", () => {
    // The browser would connect again and begin the work anew.
    close();
    // An EventSource hides the answer of a request that was refused.
    if (!opened && !signal.aborted) get(path, parameters, signal).catch((error) => !signal.aborted && failed(error));
    else if (!signal.aborted) failed(new Failure("The server ended the connection", "Is dask-tfrecord view still running?"));
  });
  return close;
}
