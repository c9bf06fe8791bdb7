// Requests to the server that sent this page. An aborted signal ends them, and with them the work of the server.

const RUNNING = "Is dask-tfrecord view still running?";

export class Failure extends Error {
  constructor(title, detail = "") {
    super(title);
    this.detail = detail;
  }
}

// The parameters that have a value.
export function queryOf(parameters) {
  const pairs = Object.entries(parameters).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  return new URLSearchParams(pairs.filter(([name, value]) => name === "column" || (value ?? "") !== ""));
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
    throw new Failure("The server does not answer", RUNNING);
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  throw new Failure(answer.error ?? `Error ${response.status}`);
}

// Follow server-sent events until the last one, an error or the signal. `receive` gets each parsed message.
export function follow(path, parameters, signal, receive, failed) {
  if (signal.aborted) return () => {};
  const source = new EventSource(address(path, parameters));
  const close = () => source.close();
  signal.addEventListener("abort", close, { once: true });
  source.addEventListener("message", (event) => {
    const message = JSON.parse(event.data);
    if (message.done) close();
    if (message.error) failed(new Failure(message.error));
    else receive(message);
  });
  let opened = false;
  source.addEventListener("open", () => (opened = true));
  source.addEventListener("error", () => {
    // The browser would connect again and begin the work anew.
    close();
    // An EventSource hides the answer of a request that was refused.
    const told = (error) => !signal.aborted && failed(error);
    if (!opened) get(path, parameters, signal).catch(told);
    else told(new Failure("The server ended the connection", RUNNING));
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
