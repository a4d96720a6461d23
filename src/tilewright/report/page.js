// What the page does: details of boxes and kernels, tables, zoom, and the theme. Names are hostile: nothing here makes
// HTML of text. Everything works by keyboard: boxes are one stop of the Tab key, arrows move between them.
"use strict";
(async () => {
  const $ = (id) => document.getElementById(id);
  const bytes = Uint8Array.from(atob($("data").textContent), (c) => c.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const D = JSON.parse(await new Response(plain).text());

  // ---------------------------------------------------------------------------------------------------- text and units
  const el = (tag, attrs = {}, ...inside) => {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(attrs)) {
      if (k === "on") e.addEventListener("click", v);
      else if (v !== null && v !== false) e.setAttribute(k, v === true ? "" : v);
    }
    e.append(...inside.filter((x) => x !== null && x !== undefined));
    return e;
  };
  const digits = (v) => {
    if (!v) return "0";
    v = Number(v.toPrecision(3));
    const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(v))));
    return v.toLocaleString("en", { minimumFractionDigits: Math.min(places, 6), maximumFractionDigits: Math.min(places, 6) });
  };
  const scaled = (v, steps) => {
    const [s, u] = steps.find(([s]) => v >= s) || steps[steps.length - 1];
    return `${digits(v / s)} ${u}`;
  };
  const seconds = (v) => (v ? scaled(v, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]) : "0 s");
  const count = (v, unit) => scaled(v, [[1e12, "T" + unit], [1e9, "G" + unit], [1e6, "M" + unit], [1e3, "k" + unit], [1, unit]]);
  const size = (v) => scaled(v, [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]);
  const share = (v) => (v > 0 && v < 1e-3 ? "< 0.1 %" : `${(100 * v).toFixed(v >= 0.9995 || !v ? 0 : 1)} %`);
  const ofTotal = (s) => (D.total ? s / D.total : 0);

  // ----------------------------------------------------------------------------------------------------------- details
  const panel = $("details");
  let opener = null;
  const facts = (pairs) => {
    const dl = el("dl");
    for (const [k, v] of pairs) if (v !== null && v !== "" && v !== undefined) dl.append(el("dt", {}, k), el("dd", {}, v));
    return dl;
  };
  const code = (title, note, at, open, kind) => {
    if (at === null || at === undefined) return null;
    return el("details", { open: open ? "" : null, "data-text": kind },
      el("summary", {}, title, " ", el("em", {}, note || "")), el("pre", { tabindex: "0" }, D.texts[at]));
  };
  const kernelView = (n, open) => {
    const k = D.kernels[n];
    const rate = k.flops && k.seconds ? k.flops / k.seconds : null;
    const moved = k.nbytes && k.seconds ? k.nbytes / k.seconds : null;
    const out = el("div", { class: "kernel", "data-kernel-view": n }, el("h3", {}, k.name));
    out.append(facts([
      ["what", [k.what, k.algorithm].filter(Boolean).join(", ")],
      ["time", `${seconds(k.seconds)} in ${k.calls} call${k.calls === 1 ? "" : "s"}, ${share(ofTotal(k.seconds))} of the time in kernels`],
      ["arithmetic", rate && `${count(rate, "FLOP/s")}, ${share(rate / D.peak)} of peak; ${count(k.flops, "FLOP")}`],
      ["data", moved && `${count(moved, "B/s")}, ${share(moved / D.memory)} of memory; ${size(k.nbytes)} must move`],
      ["family", k.family],
      ["knobs", k.knobs.map(([a, b]) => `${a} = ${b}`).join(", ")],
      ["parallel parts", String(k.parts)],
      ["shapes", k.params.map((p) => `${k.outputs.includes(p.name) ? "→ " : ""}${p.name} ${p.dtype} ${p.shape}`).join("; ")],
    ]));
    out.append(...[
      code("Hottest loop, assembly", k.assembly_note, k.assembly, open, "assembly"),
      code("Program (TIR), scheduled", "", k.scheduled, open, "tir"),
      code("Schedule, step by step", "", k.steps, false, "steps"),
      code("Program (TIR), lowered to plain loops", "", k.lowered, false, "lowered"),
    ].filter(Boolean));
    return out;
  };
  const show = (title, nodes, from) => {
    opener = from || document.activeElement;
    panel.hidden = false;
    panel.replaceChildren(
      el("button", { class: "close", type: "button", "aria-label": "Close details", on: close }, "×"),
      el("h2", {}, title), ...nodes);
    panel.scrollTop = 0;
    const at = panel.getBoundingClientRect();
    if (at.top < 0 || at.top > innerHeight - 120) panel.scrollIntoView({ block: "nearest" });
    panel.focus({ preventScroll: true });
  };
  const close = () => {
    mark(null);
    panel.replaceChildren(el("p", { class: "empty" }, "Choose a box, a point or a row to see its details."));
    if (panel.classList.contains("alone")) panel.hidden = true;
    if (opener && opener.isConnected) opener.focus();
  };
  const boxes = [...document.querySelectorAll(".box")];
  const mark = (n) => {
    for (const b of boxes) b.setAttribute("aria-pressed", String(Number(b.dataset.box) === n));
  };
  const openBox = (n, from) => {
    const b = D.boxes[n];
    mark(n);
    const inside = b.nodes.map((i) => D.nodes[i]).sort((x, y) => y.seconds - x.seconds);
    const list = el("table", {}, el("tbody", {}, ...inside.slice(0, 60).map((x) =>
      el("tr", {}, el("td", {}, x.name, " ", el("em", {}, x.op)), el("td", {}, x.shape), el("td", { class: "num" }, seconds(x.seconds))))));
    const by = [...b.kernels].sort((x, y) => D.kernels[y].seconds - D.kernels[x].seconds);
    const nodes = [
      facts([
        ["group", b.name],
        ["time", b.seconds ? `${seconds(b.seconds)}, ${share(ofTotal(b.seconds))} of the time in kernels` : "not timed"],
        ["placement", b.placement], ["layout", b.layout],
        ["makes", b.makes.map((t) => `${t.name} ${t.dtype} ${t.shape}`).join("; ")], ["note", b.note],
      ]),
      el("h3", {}, `${inside.length} ONNX node${inside.length === 1 ? "" : "s"}`), list,
      inside.length > 60 ? el("p", { class: "note" }, `and ${inside.length - 60} more`) : null,
      el("h3", {}, `${by.length} kernel${by.length === 1 ? "" : "s"}`),
      ...by.map((k, i) => kernelView(k, i === 0)),
    ];
    show(b.title, nodes.filter(Boolean), from);
  };
  const openKernel = (n, from) => {
    const home = D.calls.filter((c) => c.kernel === n && c.box !== null).map((c) => c.box);
    mark(home.length ? home[0] : null);
    const where = [...new Set(home)].map((b) => el("button", { class: "link", type: "button", on: () => openBox(b, from) }, D.boxes[b].name));
    const line = el("p", { class: "note" }, "called by ");
    where.slice(0, 24).forEach((w, i) => line.append(i ? ", " : "", w));
    show("Kernel", [where.length ? line : null, kernelView(n, true)].filter(Boolean), from);
  };
  document.addEventListener("click", (e) => {
    const at = e.target.closest("[data-box],[data-kernel]");
    if (!at || moved) return;
    if (at.dataset.box !== undefined) openBox(Number(at.dataset.box), at);
    else openKernel(Number(at.dataset.kernel), at);
  });
  document.addEventListener("keydown", (e) => {
    if (e.key === "Escape" && panel.contains(document.activeElement)) return close();
    const at = e.target.closest && e.target.closest("g[data-box],circle[data-kernel]");
    if (at && (e.key === "Enter" || e.key === " ")) {
      e.preventDefault();
      at.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    }
  });

  // ------------------------------------------------------------------------------------------------------------- graph
  let moved = false;
  const view = $("viewport"), graph = $("graph");
  if (graph) {
    const width = Number(graph.dataset.width), height = Number(graph.dataset.height);
    let zoom = 1;
    const set = (z, cx = view.clientWidth / 2, cy = view.clientHeight / 2) => {
      const next = Math.min(3, Math.max(0.05, z));
      const x = (view.scrollLeft + cx) / zoom, y = (view.scrollTop + cy) / zoom;
      zoom = next;
      graph.setAttribute("width", width * zoom);
      graph.setAttribute("height", height * zoom);
      view.scrollLeft = x * zoom - cx;
      view.scrollTop = y * zoom - cy;
    };
    const fit = () => {
      set(Math.min((view.clientWidth - 4) / width, (view.clientHeight - 4) / height, 1.4));
    };
    const start = () => {
      set(Math.min(1.1, Math.max(0.45, (view.clientWidth - 20) / width)));
      view.scrollTop = 0;
      view.scrollLeft = Math.max(0, (width * zoom - view.clientWidth) / 2);
    };
    $("zoom-in").addEventListener("click", () => set(zoom * 1.25));
    $("zoom-out").addEventListener("click", () => set(zoom / 1.25));
    $("zoom-fit").addEventListener("click", fit);
    view.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      const r = view.getBoundingClientRect();
      set(zoom * Math.exp(-e.deltaY / 300), e.clientX - r.left, e.clientY - r.top);
    }, { passive: false });
    let from = null;
    view.addEventListener("pointerdown", (e) => {
      if (e.pointerType !== "mouse" || e.button) return;
      from = [e.clientX, e.clientY, view.scrollLeft, view.scrollTop];
      moved = false;
    });
    addEventListener("pointermove", (e) => {
      if (!from) return;
      const dx = e.clientX - from[0], dy = e.clientY - from[1];
      if (!moved && Math.abs(dx) + Math.abs(dy) < 5) return;
      moved = true;
      view.classList.add("drag");
      view.scrollLeft = from[2] - dx;
      view.scrollTop = from[3] - dy;
    });
    addEventListener("pointerup", () => {
      from = null;
      view.classList.remove("drag");
      setTimeout(() => { moved = false; }, 0);
    });
    $("colour").addEventListener("change", (e) => {
      graph.dataset.colour = e.target.value;
      for (const l of document.querySelectorAll(".legend .of")) l.hidden = l.dataset.of !== e.target.value;
    });
    const readers = boxes.map(() => []);
    D.boxes.forEach((b, n) => b.reads.forEach((r) => readers[r] && n < boxes.length && readers[r].push(n)));
    const place = boxes.map((b) => b.transform.baseVal[0].matrix);
    const beside = (n, way) => {
      const row = boxes.map((_, i) => i).filter((i) => Math.abs(place[i].f - place[n].f) < 1 && (place[i].e - place[n].e) * way > 0);
      return row.sort((a, b) => Math.abs(place[a].e - place[n].e) - Math.abs(place[b].e - place[n].e))[0];
    };
    graph.addEventListener("keydown", (e) => {
      const g = e.target.closest(".box");
      if (!g) return;
      const n = Number(g.dataset.box);
      const to = {
        ArrowDown: () => readers[n][0] ?? (n + 1 < boxes.length ? n + 1 : undefined),
        ArrowUp: () => D.boxes[n].reads[0] ?? (n ? n - 1 : undefined),
        ArrowLeft: () => beside(n, -1), ArrowRight: () => beside(n, 1),
        Home: () => 0, End: () => boxes.length - 1,
      }[e.key];
      if (e.key === "+" || e.key === "=") set(zoom * 1.25);
      if (e.key === "-") set(zoom / 1.25);
      if (!to) return;
      e.preventDefault();
      const next = boxes[to()];
      if (!next) return;
      g.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
      next.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    start();
  }

  // ------------------------------------------------------------------------------------------------------------ tables
  const FIRST = 60;
  const table = (id, columns, rows, open) => {
    const t = $(id);
    if (!t) return;
    let by = columns.findIndex((c) => c.first), down = true, all = false, wanted = "";
    const head = el("tr"), body = el("tbody"), more = el("button", { class: "more", type: "button" });
    columns.forEach((c, i) => {
      const sort = el("button", { type: "button", on: () => { down = by === i ? !down : Boolean(c.num); by = i; draw(); } }, c.title);
      head.append(el("th", { scope: "col", class: c.num ? "num" : null }, sort));
    });
    t.append(el("thead", {}, head), body);
    t.parentElement.after(more);
    more.addEventListener("click", () => { all = !all; draw(); });
    const draw = () => {
      const c = columns[by];
      const found = rows.filter((r) => !wanted || columns.some((k) => !k.num && String(k.value(r)).toLowerCase().includes(wanted)));
      const key = (r) => c.value(r) ?? -Infinity;
      found.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1));
      [...head.children].forEach((h, i) => (i === by ? h.setAttribute("aria-sort", down ? "descending" : "ascending") : h.removeAttribute("aria-sort")));
      body.replaceChildren(...found.slice(0, all ? found.length : FIRST).map((r) => el("tr", {}, ...columns.map((k) =>
        el("td", { class: k.num ? "num" : null }, k.cell ? k.cell(r) : String(k.value(r) ?? ""))))));
      more.hidden = found.length <= FIRST;
      more.textContent = all ? `Show the first ${FIRST}` : `Show all ${found.length.toLocaleString("en")}`;
    };
    const find = document.querySelector(`[data-find="${id}"]`);
    find.addEventListener("input", () => { wanted = find.value.trim().toLowerCase(); draw(); });
    draw();
  };
  const bar = (v, most) => {
    const i = el("i");
    i.style.width = `${(100 * v / (most || 1)).toFixed(2)}%`;
    return el("span", { class: "track", role: "img", "aria-label": share(ofTotal(v)) }, i);
  };
  const name = (text, attr, n) => {
    const b = el("button", { class: "link", type: "button" }, text);
    if (n !== null) b.dataset[attr] = n;
    return n === null ? document.createTextNode(text) : b;
  };
  const most = Math.max(...D.nodes.map((n) => n.seconds), 0);
  table("nodes-t", [
    { title: "Node", value: (n) => n.name, cell: (n) => name(n.name, "box", n.box) },
    { title: "Operator", value: (n) => n.op },
    { title: "Time", num: true, first: true, value: (n) => n.seconds, cell: (n) => (n.box === null ? "" : seconds(n.seconds)) },
    { title: "Share", num: true, value: (n) => n.seconds, cell: (n) => (n.box === null ? "" : share(ofTotal(n.seconds))) },
    { title: "", value: (n) => "", cell: (n) => (n.note ? el("em", {}, n.note) : bar(n.seconds, most)) },
    { title: "Makes", value: (n) => n.shape },
  ], D.nodes);
  const kernels = D.kernels.map((k, n) => ({ ...k, n, rate: k.flops && k.seconds ? k.flops / k.seconds : null, moved: k.nbytes && k.seconds ? k.nbytes / k.seconds : null }));
  const longest = Math.max(...kernels.map((k) => k.seconds), 0);
  const known = kernels.some((k) => k.family);
  table("kernels-t", [
    { title: "Kernel", value: (k) => k.name, cell: (k) => name(k.name, "kernel", k.n) },
    { title: "Time", num: true, first: true, value: (k) => k.seconds, cell: (k) => seconds(k.seconds) },
    { title: "Share", num: true, value: (k) => k.seconds, cell: (k) => share(ofTotal(k.seconds)) },
    { title: "", value: () => "", cell: (k) => bar(k.seconds, longest) },
    { title: "Calls", num: true, value: (k) => k.calls },
    { title: "Parts", num: true, value: (k) => k.parts },
    ...(known ? [
      { title: "FLOP/s", num: true, value: (k) => k.rate, cell: (k) => (k.rate ? count(k.rate, "") : "–") },
      { title: "of peak", num: true, value: (k) => k.rate, cell: (k) => (k.rate ? share(k.rate / D.peak) : "–") },
      { title: "B/s", num: true, value: (k) => k.moved, cell: (k) => (k.moved ? count(k.moved, "") : "–") },
      { title: "Family", value: (k) => k.family },
      { title: "What", value: (k) => k.what },
    ] : []),
  ], kernels);

  // ------------------------------------------------------------------------------------------------------------- theme
  $("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.documentElement.dataset.ready = "1";
})();
