"use strict";
// Draws the charts of a page from the JSON beside them, sorts its tables, and keeps a live page live.
(() => {
  const ink = "currentColor";
  const number = (v, digits) => (v === null || v === undefined ? "–" : v.toLocaleString("en", {
    minimumFractionDigits: Math.min(digits, 2), maximumFractionDigits: digits }));
  const dashed = s => (s.dash ? { strokeDasharray: s.dash, strokeDashoffset: s.offset || 0 } : {});
  const colour = s => `var(--c${s.colour % 9})`;
  const base = (spec, width, more) => ({
    width, marginTop: 22, marginRight: 18, marginBottom: 38, marginLeft: 52,
    style: { background: "none", overflow: "visible" }, ariaHidden: "true", ...more });
  const tall = (spec, width) => Math.min(spec.height, Math.max(230, 0.8 * width)); // no towers on a phone
  // A log axis whose ticks would crowd is told the values that were measured.
  const axis = a => ({ label: a.label, ...(a.log ? { type: "log" } : {}), ...(a.ticks ? { ticks: a.ticks, tickFormat: String } : {}) });

  // Round values of a log axis: 1, 2, 5 and their tenfolds, over many decades the latter alone.
  const steps = ([low, high]) => d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1)
    .flatMap(e => (high / low < 2e3 ? [1, 2, 5] : [1]).map(v => Number(`${v}e${e}`))).filter(v => v >= low / 1.1 && v <= high * 1.1);

  function lines(spec, width, shown, whole) {
    const drawn = spec.series.filter(s => shown.has(s.name));
    const all = drawn.flatMap(s => s.points.map(p => ({ x: p[0], y: p[1], lo: p[2] ?? p[1], hi: p[3] ?? p[1], s })));
    const zoomed = !whole && spec.from !== null, focus = zoomed ? all.filter(p => p.x >= spec.from) : all;
    const domain = focus.length ? [Math.min(...focus.map(p => p.lo)), Math.max(...focus.map(p => p.hi))] : undefined;
    const pad = domain && !spec.y.log ? Math.max((domain[1] - domain[0]) * 0.06, Math.abs(domain[1]) * 1e-6, 1e-9) : 0;
    const xs = [...new Set(focus.map(p => p.x))].sort((a, b) => a - b), few = xs.length <= 12;
    const told = xs.map(x => {
      const here = all.filter(p => p.x === x).sort((a, b) => b.y - a.y);
      const rows = here.map(p => `${p.s.name}: ${number(p.y, spec.digits)}${spec.unit}` +
        (p.hi > p.lo ? ` ± ${number((p.hi - p.lo) / 2, spec.digits)}` : ""));
      return { x, y: Math.max(...here.map(p => p.y)), title: [`${spec.x.name} ${x}`, ...rows].join("\n") };
    });
    const seen = s => (zoomed ? s.points.filter(p => p[0] >= xs[0]) : s.points);
    const upright = spec.y.log && domain ? { ...axis(spec.y), ticks: steps(domain), tickFormat: v => number(v, 4) } : { ...axis(spec.y), nice: true };
    const marks = [
      Plot.gridY({ strokeOpacity: 0.12, ...(upright.ticks ? { ticks: upright.ticks } : {}) }), Plot.ruleX([xs[0]], { strokeOpacity: 0 }),
      ...drawn.filter(s => s.points.some(p => p[2] !== undefined)).map(s => Plot.areaY(seen(s), {
        x: p => p[0], y1: p => p[2] ?? p[1], y2: p => p[3] ?? p[1], fill: colour(s), fillOpacity: 0.14, clip: true })),
      ...[...drawn].reverse().map(s => Plot.line(seen(s), { x: p => p[0], y: p => p[1], stroke: colour(s),
        strokeWidth: s.width, clip: true, strokeLinejoin: "round", ...dashed(s) })),
      ...drawn.filter(s => s.points.length <= 12).map(s => Plot.dot(seen(s), { x: p => p[0], y: p => p[1], fill: colour(s), r: 3, clip: true })),
      Plot.ruleX(told, Plot.pointerX({ x: "x", stroke: ink, strokeOpacity: 0.35 })),
      Plot.dot(focus, Plot.pointerX({ x: "x", y: "y", r: 3.5, fill: p => colour(p.s), clip: true })),
      Plot.tip(told, Plot.pointerX({ x: "x", y: "y", title: "title", preferredAnchor: "top-left" })),
    ];
    const made = Plot.plot(base(spec, width, { height: tall(spec, width), x: { ...axis(spec.x), ...(zoomed ? { domain: [xs[0], xs.at(-1)] } : {}), inset: few ? 5 : 0 }, color: { type: "identity" },
      y: { ...upright, domain: domain && (spec.y.log ? [domain[0] / 1.1, domain[1] * 1.1] : [domain[0] - pad, domain[1] + pad]) }, marks }));
    return { made, told };
  }

  // Names of classes may be long: they take what room there is, and are then cut. Hovering tells all of them.
  const LETTER = 6.9; // pixels, on average
  const fitting = (names, most) => Math.min(most, 18 + LETTER * Math.max(...names.map(n => n.length)));
  const cut = pixels => name => { const room = Math.max(4, Math.floor(pixels / LETTER)); return name.length > room ? `${name.slice(0, room - 1).trimEnd()}…` : name; };

  function bars(spec, width) {
    const left = fitting(spec.rows.map(r => r[0]), width * 0.42);
    const told = spec.rows.map(r => ({ x: r[1], y: r[0], title: `${r[0]}\n${r[2]}` }));
    const made = Plot.plot(base(spec, width, { height: 60 + 32 * spec.rows.length, marginLeft: left, marginRight: 48,
      x: { label: spec.x.label, domain: spec.domain, clamp: true, ticks: 5 }, y: { label: null, domain: spec.rows.map(r => r[0]), padding: 0.3, tickSize: 0, tickFormat: cut(left - 14) },
      marks: [Plot.gridX({ strokeOpacity: 0.12, ticks: 5 }),
        Plot.barX(told, { x1: spec.domain[0], x2: "x", y: "y", fill: "var(--c0)", fillOpacity: 0.85, rx: 2 }),
        Plot.text(told, { x: "x", y: "y", text: d => number(d.x, spec.digits), dx: 6, textAnchor: "start", fill: ink }),
        ...(spec.limit === null ? [] : [Plot.ruleX([spec.limit], { stroke: "var(--c1)", strokeWidth: 2, strokeDasharray: "6 4" })]),
        Plot.tip(told, Plot.pointerY({ x: "x", y: "y", title: "title" }))] }));
    return { made, told };
  }

  function dots(spec, width) {
    const all = spec.groups.flatMap((g, i) => g.values.map((v, j) => ({ x: v[1], y: g.name, i,
      jitter: (spec.groups.length === 1 ? 44 : 28) * ((j * 0.618034) % 1 - 0.5), title: `${v[0]}\n${number(v[1], spec.digits)}${spec.unit}` })));
    const means = spec.groups.map((g, i) => ({ y: g.name, i, x: g.values.reduce((a, v) => a + v[1], 0) / g.values.length }));
    const one = spec.groups.length === 1, left = one ? 16 : fitting(spec.groups.map(g => g.name), width * 0.42);
    const made = Plot.plot(base(spec, width, { height: 60 + (one ? 70 : 52) * spec.groups.length, marginLeft: left,
      x: { label: spec.x.label, nice: true, inset: 8 }, y: { label: null, axis: one ? null : "left", domain: spec.groups.map(g => g.name), tickSize: 0, tickFormat: cut(left - 14) },
      color: { type: "identity" },
      marks: [Plot.gridX({ strokeOpacity: 0.12 }),
        ...all.map(d => Plot.dot([d], { x: "x", y: "y", dy: d.jitter, r: 4.5, fill: `var(--c${d.i % 9})`, fillOpacity: 0.6 })),
        ...means.map(m => Plot.tickX([m], { x: "x", y: "y", stroke: `var(--c${m.i % 9})`, strokeWidth: 3 })),
        Plot.tip(all, Plot.pointer({ x: "x", y: "y", title: "title" }))] }));
    return { made, told: all };
  }

  function matrix(spec, width) {
    const rows = spec.rows, columns = spec.columns;
    const digits = number(Math.max(...spec.values.flat()), 0).length; // cells hold their numbers, also on a phone
    const left = fitting(rows, width * 0.34), least = spec.text ? 8 + 5.2 * digits : 6, room = width - left - 10;
    const longest = Math.max(...columns.map(c => c.length)) * LETTER, slanted = longest > room / columns.length;
    const label = Math.min(longest, 105), lean = slanted ? Math.ceil(0.71 * label) + 8 : 0; // a slanted name goes up, and beyond its column
    const high = lean ? lean + 34 : 42, right = Math.max(10, lean - Math.max(least, (room - lean) / columns.length) / 2);
    const wide = Math.max(width, left + least * columns.length + right), cell = (wide - left - right) / columns.length;
    const turn = Number(getComputedStyle(document.documentElement).getPropertyValue("--turn")); // where light ink reads better than dark
    const all = rows.flatMap((r, i) => columns.map((c, k) => ({ r, c, v: spec.values[i][k], depth: spec.depths[i][k],
      right: !spec.square || i === k, title: spec.told[i][k] })));
    const made = Plot.plot(base(spec, wide, { height: high + 10 + Math.min(34, Math.max(20, cell)) * rows.length, marginLeft: left,
      marginTop: high, marginBottom: 10, marginRight: right, x: { label: spec.x, axis: "top", domain: columns, tickRotate: slanted ? -45 : 0, tickFormat: cut(slanted ? label : 1e3), tickSize: 0, labelAnchor: "center", labelOffset: high - 6 },
      y: { label: spec.y, labelAnchor: "top", labelArrow: "none", domain: rows, tickSize: 0, tickFormat: cut(left - 14) }, opacity: { type: "identity" }, color: { type: "identity" },
      marks: [Plot.cell(all, { x: "c", y: "r", fill: d => (!d.right ? "var(--c1)" : "var(--c0)"), fillOpacity: d => 0.04 + 0.9 * d.depth, inset: 0.5, rx: 2 }),
        ...(spec.text ? [Plot.text(all.filter(d => d.v), { x: "c", y: "r", text: d => number(d.v, 0), fill: d => (d.depth > turn ? "var(--accent-ink)" : ink), fontSize: cell < 26 ? 9 : cell < 40 ? 10 : 12 })] : []),
        Plot.tip(all, Plot.pointer({ x: "c", y: "r", title: "title" }))] }));
    return { made, told: all };
  }

  function calibration(spec, width) {
    const told = spec.bins.map(b => ({ ...b, title: `sure ${b.from}–${b.to} %\nright: ${number(b.right, 1)} %\n${b.records} records` }));
    const made = Plot.plot(base(spec, width, { height: tall(spec, width), x: { label: spec.x.label, domain: [0, 100] }, y: { label: spec.y.label, domain: [0, 100] },
      opacity: { type: "identity" },
      marks: [Plot.gridY({ strokeOpacity: 0.12 }),
        Plot.rectY(told, { x1: "from", x2: "to", y: "right", fill: "var(--c0)", fillOpacity: d => 0.35 + 0.6 * d.depth, inset: 1 }),
        Plot.line([[0, 0], [100, 100]], { stroke: "var(--c1)", strokeWidth: 2, strokeDasharray: "6 4" }),
        Plot.tip(told, Plot.pointerX({ x: d => (d.from + d.to) / 2, y: "right", title: "title" }))] }));
    return { made, told };
  }

  const kinds = { lines, bars, dots, matrix, calibration };
  const state = new Map(); // what a reader switched, by chart, so that a live page keeps it

  const keyOf = (place, spec) => `${spec.title} ${[...document.querySelectorAll(".plot")].indexOf(place)}`;

  function draw(place, paper = null) { // paper: the width in print, where the screen's is of no use
    const spec = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    if (paper) spec.height = Math.min(spec.height, 240);
    const key = keyOf(place, spec), kept = state.get(key) || { off: new Set(), whole: false, at: -1 };
    state.set(key, kept);
    const shown = new Set((spec.series || []).map(s => s.name).filter(n => !kept.off.has(n)));
    const width = Math.max(260, paper ?? place.clientWidth);
    const { made, told } = kinds[spec.kind](spec, width, shown, kept.whole);
    place.replaceChildren(made);
    place.classList.toggle("wide", !paper && Number(made.getAttribute("width")) > width + 1);
    place.told = told;
    place.drawn = place.clientWidth;
  }

  function furnish(figure) { // legend, zoom and keyboard of one chart
    const place = figure.querySelector(".plot"), spec = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    draw(place);
    const kept = state.get(keyOf(place, spec)), readout = figure.querySelector(".readout");
    for (const button of figure.querySelectorAll(".legend button")) {
      const name = button.dataset.series;
      button.setAttribute("aria-pressed", String(!kept.off.has(name)));
      button.addEventListener("click", () => {
        kept.off.has(name) ? kept.off.delete(name) : kept.off.add(name);
        if (kept.off.size === spec.series.length) kept.off.clear();
        figure.querySelectorAll(".legend button").forEach(b => b.setAttribute("aria-pressed", String(!kept.off.has(b.dataset.series))));
        draw(place);
      });
    }
    const zoom = figure.querySelector(".zoom");
    if (zoom) {
      const tell = () => { zoom.textContent = kept.whole ? "Zoom in on later rounds" : "Show all from the first round"; };
      zoom.hidden = false;
      zoom.addEventListener("click", () => { kept.whole = !kept.whole; tell(); draw(place); });
      tell();
    }
    place.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step || !place.told.length) return;
      event.preventDefault();
      kept.at = Math.min(place.told.length - 1, Math.max(0, kept.at + step));
      readout.textContent = place.told[kept.at].title.replaceAll("\n", " · ");
    });
  }

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "descending" || (column === 0 && head.getAttribute("aria-sort") !== "ascending");
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = row => { const cell = row.cells[column], v = cell.dataset.value ?? cell.textContent.trim();
          return v === "" ? null : isNaN(parseFloat(v)) ? v : parseFloat(v.replace("−", "-")); };
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          const x = value(a), y = value(b);
          if (x === null || y === null) return (x === null) - (y === null);
          const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
          return up ? order : -order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  const hint = () => document.querySelectorAll(".scroll,.plot").forEach(e => e.classList.toggle("over", e.scrollWidth > e.clientWidth + 1));
  const watcher = new ResizeObserver(entries => entries.forEach(({ target }) => {
    if (target.isConnected && Math.abs(target.clientWidth - (target.drawn ?? 0)) > 1) draw(target);
  }));

  function enliven() {
    if (globalThis.Plot) document.querySelectorAll("figure.chart").forEach(figure => {
      furnish(figure);
      watcher.observe(figure.querySelector(".plot"));
    });
    document.querySelectorAll("table.sortable").forEach(sortable);
    hint();
  }
  enliven();
  addEventListener("resize", hint);
  // On paper a chart has half of an A4 page's width or, alone in its row, all of it: page.css says the same.
  const alone = place => !place.closest(".charts") || place.closest(".chart").matches(":last-child:nth-child(odd)");
  const redraw = width => globalThis.Plot && document.querySelectorAll(".plot").forEach(place => draw(place, width(place)));
  const unfold = on => document.querySelectorAll("details.paper").forEach(d => { d.open = on; });
  addEventListener("beforeprint", () => { unfold(true); redraw(place => (alone(place) ? 640 : 300)); });
  addEventListener("afterprint", () => { unfold(false); redraw(() => null); });

  // A page that is served by 'fedsofim watch' asks for itself anew, and changes only if it did.
  const every = Number(document.body.dataset.every || 0);
  if (!every) return;
  let tag = null;
  async function again() {
    try {
      const answer = await fetch(location.href, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
      document.querySelector(".gone")?.remove();
      if (answer.status === 200) {
        tag = answer.headers.get("ETag");
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        const open = new Set([...document.querySelectorAll("details[open]>summary")].map(s => s.textContent));
        const focus = document.activeElement?.closest("figure") ? null : document.activeElement?.id;
        document.querySelector("main").replaceWith(fresh.querySelector("main"));
        document.title = fresh.title;
        document.querySelectorAll("details>summary").forEach(s => { s.parentElement.open = open.has(s.textContent); });
        enliven();
        if (focus) document.getElementById(focus)?.focus();
        if (fresh.body.dataset.every === undefined) return;
      }
    } catch {
      if (!document.querySelector(".gone")) document.querySelector("main").insertAdjacentHTML("beforeend",
        "<p class=gone role=status>No longer connected to fedsofim watch; this is the last that was seen.</p>");
    }
    setTimeout(again, every);
  }
  setTimeout(again, every);
})();
