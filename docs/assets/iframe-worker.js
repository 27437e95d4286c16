// Search runs in a worker, which browsers refuse to pages opened as files. There, an invisible
// frame stands in for it: it has a scope of its own, and is handed messages in the same way.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.scope = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          const scope = frame.contentWindow;
          const load = (source, done) => {
            const script = scope.document.createElement("script");
            script.src = source;
            script.addEventListener("load", done);
            scope.document.body.append(script);
          };
          scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          scope.importScripts = (...sources) =>
            sources.reduce((before, source) => before.then(() => new Promise((r) => load(source, r))), Promise.resolve());
          load(url, () => resolve(scope));
        });
      });
      frame.srcdoc = "<body></body>";
      document.body.append(frame);
    }

    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
