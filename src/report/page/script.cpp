#include "report/page/assets.h"

namespace mnist_train::report {

const char* const kScript = R"js(
    (function () {
      "use strict";
      var body = document.body;
      function recall(key) { try { return sessionStorage.getItem(key); } catch (e) { return null; } }
      function keep(key, value) { try { sessionStorage.setItem(key, value); } catch (e) { /* a comfort less */ } }

      document.querySelectorAll("details[id]").forEach(function (part) {
        var key = "open:" + location.pathname + part.id, kept = recall(key);
        if (kept !== null) part.open = kept === "1";
        part.addEventListener("toggle", function () { keep(key, part.open ? "1" : "0"); });
      });

      var rows = Array.prototype.slice.call(document.querySelectorAll("tr[data-truth]"));
      var place = document.getElementById("filters");
      if (place && rows.length > 12) {
        var chosen = {truth: "", guess: ""};
        var apply = function () {
          rows.forEach(function (row) {
            row.hidden = ["truth", "guess"].some(function (key) {
              return chosen[key] !== "" && row.getAttribute("data-" + key) !== chosen[key];
            });
          });
        };
        ["truth", "guess"].forEach(function (key) {
          var label = document.createElement("label"), select = document.createElement("select");
          var names = {};
          var values = rows.map(function (row) {
            var value = row.getAttribute("data-" + key);
            names[value] = row.cells[key === "truth" ? 1 : 2].textContent;
            return value;
          });
          values = values.filter(function (value, i) { return values.indexOf(value) === i; });
          values.sort(function (a, b) { return a - b; });
          [""].concat(values).forEach(function (value) {
            var option = document.createElement("option");
            option.value = value;
            option.textContent = value === "" ? "all" : names[value];
            select.appendChild(option);
          });
          var kept = recall(key + location.pathname);
          if (kept !== null && values.indexOf(kept) >= 0) select.value = chosen[key] = kept;
          select.addEventListener("change", function () {
            chosen[key] = select.value;
            keep(key + location.pathname, select.value);
            apply();
          });
          label.appendChild(document.createTextNode(key + " "));
          label.appendChild(select);
          place.appendChild(label);
        });
        apply();
      }

      var refresh = Number(body.getAttribute("data-refresh")), live = document.getElementById("live");
      if (!refresh || !live) return;
      var paused = recall("paused" + location.pathname) === "1", note = document.createElement("span");
      var button = document.createElement("button");
      button.type = "button";
      live.appendChild(note);
      live.appendChild(button);
      function show() {
        var age = Math.round(Date.now() / 1000 - Number(body.getAttribute("data-written")));
        note.textContent = age > 20 * refresh + 120
          ? "Nothing new for " + Math.round(age / 60) + " minutes: the run may have died."
          : paused ? "Not renewing." : "Renews itself every " + refresh + " s.";
        button.textContent = paused ? "Renew" : "Pause";
      }
      button.addEventListener("click", function () {
        paused = !paused;
        keep("paused" + location.pathname, paused ? "1" : "0");
        show();
      });
      setInterval(function () {
        show();
        var reading = String(getSelection()) !== "" || document.activeElement.tagName === "SELECT";
        if (!paused && !reading && document.visibilityState === "visible") location.reload();
      }, refresh * 1000);
      show();
    })();
)js";

}  // namespace mnist_train::report
