// Calls of the control API: the token, problem documents as errors, and Server-Sent Events.

const KEY = "paceline-token";

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title ?? `the control API answered ${status}`);
    this.status = status;
    this.kind = body.type ?? "";
    this.fields = body.errors ?? [];
  }
}

// A link may carry the token after #, which browsers never send; it is taken out of the address at once.
export function takeTokenFromAddress() {
  const match = /^#token=(.+)$/.exec(location.hash);
  if (!match) return;
  sessionStorage.setItem(KEY, decodeURIComponent(match[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

async function problemOf(response) {
  try {
    return new Problem(response.status, await response.json());
  } catch {
    return new Problem(response.status, {});
  }
}

async function request(path, options = {}) {
  const headers = { Authorization: `Bearer ${token.get()}`, ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The control API does not answer. Is `paceline up` still running?" });
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

export async function get(path, signal) {
  const response = await request(path, { signal });
  return { body: await response.json(), etag: response.headers.get("ETag") };
}

export async function send(method, path, body, headers = {}) {
  const response = await request(path, {
    method, headers: { "Content-Type": "application/json", ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return { status: response.status, body: await response.json(), etag: response.headers.get("ETag") };
}

// EventSource can't send a token, so the stream is read with fetch. Yields the data of each event until the stream ends.
export async function* events(path, signal) {
  const response = await request(path, { signal, headers: { Accept: "text/event-stream" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data:"));
        if (data.length) yield JSON.parse(data.map((line) => line.slice(5)).join("\n"));
      }
    }
  } finally {
    // Rejects where the stream was aborted, which is what was wanted.
    reader.cancel().catch(() => {});
  }
}

// Follows an experiment to its end, and connects again when the stream breaks in between.
export async function follow(id, signal, onChange) {
  while (!signal.aborted) {
    try {
      for await (const change of events(`/v1/experiments/${id}/events`, signal)) {
        onChange(change);
        if (change.endedAt) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status >= 400 && error.status < 500) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
