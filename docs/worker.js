/* SPDX-License-Identifier: Apache-2.0
   The search of the site runs in a worker, which browsers refuse to pages opened from a folder. There a hidden frame
   takes the worker's place: it runs the same script and passes the same messages. */
(function () {
  if (location.protocol !== "file:") { return; }

  function load(view, address) {
    return new Promise(function (done, failed) {
      var script = view.document.createElement("script");
      script.src = address;
      script.onload = function () { done(); };
      script.onerror = failed;
      view.document.head.appendChild(script);
    });
  }

  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      var worker = this, frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      var view = frame.contentWindow;
      view.postMessage = function (data) {
        var event = new MessageEvent("message", { data: data });
        worker.dispatchEvent(event);
        if (worker.onmessage) { worker.onmessage(event); }
      };
      view.importScripts = function () {
        return Array.from(arguments).reduce(function (before, one) {
          return before.then(function () { return load(view, new URL(one, address).href); });
        }, Promise.resolve());
      };
      this.view = view;
      this.frame = frame;
      this.ready = load(view, address);
    }

    postMessage(data) {
      var view = this.view;
      this.ready.then(function () { view.dispatchEvent(new MessageEvent("message", { data: data })); });
    }

    terminate() { this.frame.remove(); }
  };
})();
