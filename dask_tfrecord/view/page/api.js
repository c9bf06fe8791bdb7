// Requests to the server that sent this page. An aborted signal ends them, and with them the work of the server.

export class Failure extends Error {
  constructor(title, detail = "") {
    super(title);
    this.detail = detail;
  }
}

// The parameters that have a value.
export function queryOf(parameters) {
  const known = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return new URLSearchParams(known);
}

export function address(path, parameters = {}) {
  return `api/${path}?${queryOf(parameters)}`;
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
    const told = (error) => !signal.aborted && failed(error);
    if (!opened) get(path, parameters, signal).catch(told);
    else told(new Failure("The server ended the connection", "Is dask-tfrecord view still running?"));
  });
  return close;
}

// The statistics of the first rows, for pages that need no more. `failed` is called if there are none.
export function sampleStatistics(set, signal, receive, failed = () => {}) {
  const first = (message) => {
    close();
    receive(message.columns);
  };
  const close = follow("statistics", { data: set.data }, signal, first, failed);
}
