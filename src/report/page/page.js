(() => {
  "use strict";
  const recall = key => { try { return sessionStorage.getItem(key); } catch { return null; } };
  const keep = (key, value) => { try { sessionStorage.setItem(key, value); } catch { /* the page works without it */ } };
  const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

  for (const part of document.querySelectorAll("details[id]")) {
    const key = "open:" + location.pathname + part.id, kept = recall(key);
    if (kept !== null) part.open = kept === "1";
    part.addEventListener("toggle", () => keep(key, part.open ? "1" : "0"));
  }

  // Wrong predictions are shown a few at a time, filtered by true class, prediction or cell of the matrix.
  const wall = document.getElementById("wrong-images"), filters = document.getElementById("filters");
  if (wall && filters) {
    const more = document.getElementById("more-wrong"), page = wall.children.length;
    if (more) { wall.append(...more.querySelectorAll("li")); more.remove(); }
    const pictures = [...wall.children], cells = [...document.querySelectorAll("a[data-truth]")];
    const chosen = {truth: "", guess: ""}, selects = {}, labels = {truth: "true class ", guess: "prediction "};
    const status = make("span", {className: "soft"}), all = make("button", {type: "button", textContent: "Show all kinds"});
    const next = make("button", {type: "button"});
    status.setAttribute("role", "status");
    let limit = page;
    const apply = () => {
      const fits = pictures.filter(picture => Object.keys(chosen).every(key => !chosen[key] || picture.dataset[key] === chosen[key]));
      for (const picture of pictures) picture.hidden = true;
      for (const picture of fits.slice(0, limit)) picture.hidden = false;
      for (const cell of cells) cell.classList.toggle("chosen", cell.dataset.truth === chosen.truth && cell.dataset.guess === chosen.guess);
      for (const key in selects) { selects[key].value = chosen[key]; keep(key + location.pathname, chosen[key]); }
      status.textContent = fits.length ? Math.min(limit, fits.length) + " of " + fits.length + (fits.length === 1 ? " image" : " images") : "no images";
      all.hidden = !chosen.truth && !chosen.guess;
      next.hidden = fits.length <= limit;
      next.textContent = "Show " + Math.min(page, fits.length - limit) + " more";
    };
    const choose = (truth, guess) => { Object.assign(chosen, {truth, guess}); limit = page; apply(); };
    Object.keys(chosen).forEach((key, i) => {
      const names = new Map(pictures.map(picture => [picture.dataset[key], picture.querySelectorAll("b")[i].textContent]));
      const select = selects[key] = make("select"), label = make("label");
      select.append(new Option("all", ""), ...[...names.keys()].sort((a, b) => a - b).map(value => new Option(names.get(value), value)));
      const kept = recall(key + location.pathname);
      if (names.has(kept)) chosen[key] = kept;
      select.addEventListener("change", () => choose(selects.truth.value, selects.guess.value));
      label.append(labels[key], select);
      filters.append(label);
    });
    for (const cell of cells) cell.addEventListener("click", event => {
      event.preventDefault();
      if (cell.classList.contains("chosen")) return choose("", "");
      choose(cell.dataset.truth, cell.dataset.guess);
      document.getElementById("wrong").scrollIntoView({block: "nearest"});
      wall.scrollIntoView({block: "nearest"});
    });
    all.addEventListener("click", () => choose("", ""));
    next.addEventListener("click", () => { limit += page; apply(); });
    filters.append(status, all);
    wall.after(next);
    apply();
  }

  // The legends of charts show the values at the pointer, or at the cursor moved by arrow keys.
  const write = {
    percent: value => (100 * value).toFixed(2) + " %",
    decimal: value => String(Number(value.toPrecision(4))),
    count: value => Math.round(value).toLocaleString("en-US")
  };
  const draw = (svg, tag, attributes) => {
    const part = svg.appendChild(document.createElementNS("http" + "://www.w3.org/2000/svg", tag));
    for (const name in attributes) part.setAttribute(name, attributes[name]);
    return part;
  };
  for (const figure of document.querySelectorAll("figure.chart")) {
    const svg = figure.querySelector(":scope > svg"), at = figure.querySelector(".at");
    const cells = [...figure.querySelectorAll(".legend b")], last = [at, ...cells].map(cell => cell.textContent);
    const lines = [...svg.querySelectorAll("path[data-x]")].filter(path => path.dataset.x).map(path => ({
      xs: path.dataset.x.split(",").map(Number), ys: path.dataset.y.split(",").map(Number),
      places: path.getAttribute("d").split(/[ML]/).slice(1).map(pair => pair.split(" ").map(Number))
    }));
    const stops = [...new Map(lines.flatMap(line => line.xs.map((x, i) => [x, line.places[i][0]])))].sort((a, b) => a[0] - b[0]);
    if (!stops.length || lines.length !== cells.length) continue;
    const cursor = draw(svg, "path", {class: "cursor"}), points = lines.map(() => draw(svg, "circle", {class: "point", r: 4}));
    let now = stops.length - 1;
    const hide = () => {
      for (const part of [cursor, ...points]) part.setAttribute("visibility", "hidden");
      [at, ...cells].forEach((cell, i) => { cell.textContent = last[i]; });
    };
    const show = stop => {
      now = Math.max(0, Math.min(stops.length - 1, stop));
      const [x, left] = stops[now], texts = [svg.dataset.unit + " " + x];
      cursor.setAttribute("visibility", "visible");
      cursor.setAttribute("d", "M" + left + " 10V172");
      lines.forEach((line, i) => {
        let near = 0;
        line.xs.forEach((other, k) => { if (Math.abs(other - x) < Math.abs(line.xs[near] - x)) near = k; });
        cells[i].textContent = write[svg.dataset.format](line.ys[near]);
        texts.push(cells[i].parentElement.textContent.trim());
        points[i].setAttribute("visibility", "visible");
        points[i].setAttribute("cx", line.places[near][0]);
        points[i].setAttribute("cy", line.places[near][1]);
      });
      at.textContent = texts[0];
      svg.setAttribute("aria-valuenow", now);
      svg.setAttribute("aria-valuetext", texts.join(", "));
    };
    const point = event => {
      const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      show(stops.reduce((best, stop, i) => Math.abs(stop[1] - x) < Math.abs(stops[best][1] - x) ? i : best, 0));
    };
    const moves = {ArrowLeft: () => now - 1, ArrowDown: () => now - 1, ArrowRight: () => now + 1, ArrowUp: () => now + 1,
      PageDown: () => now - 10, PageUp: () => now + 10, Home: () => 0, End: () => stops.length - 1};
    for (const [name, value] of Object.entries({role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": stops.length - 1})) svg.setAttribute(name, value);
    show(now);
    hide();
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerleave", event => { if (event.pointerType === "mouse" && document.activeElement !== svg) hide(); });
    svg.addEventListener("focus", () => show(now));
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", event => {
      if (event.key === "Escape") hide();
      if (!(event.key in moves) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      show(moves[event.key]());
    });
  }

  const refresh = Number(document.body.dataset.refresh), live = document.getElementById("live");
  if (!refresh || !live) return;
  const note = document.createElement("span"), button = make("button", {type: "button"});
  let paused = recall("paused" + location.pathname) === "1";
  live.append(note, button);
  const show = () => {
    const age = Math.round(Date.now() / 1000 - Number(document.body.dataset.written));
    note.textContent = age > 900
      ? "No update for " + Math.round(age / 60) + " minutes: the run may have died."
      : paused ? "Paused." : "Refreshes every " + refresh + " s.";
    button.textContent = paused ? "Resume" : "Pause";
  };
  button.addEventListener("click", () => {
    paused = !paused;
    keep("paused" + location.pathname, paused ? "1" : "0");
    show();
  });
  setInterval(() => {
    show();
    const reading = String(getSelection()) !== "" || document.activeElement.matches("select, svg");
    if (!paused && !reading && document.visibilityState === "visible") location.reload();
  }, refresh * 1000);
  show();
})();
