// Live plots and live tails. Payloads become text nodes, never markup.
"use strict";

(() => {
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => {
    if (value == null) return "–";
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(value) >= size) return `${+(value / size).toFixed(1)}${unit}`;
    return String(Math.abs(value) < 10 ? +value.toFixed(2) : Math.round(value));
  };

  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
  const fromZero = (_chart, _low, high) => [0, high > 0 ? high * 1.1 : 1];

  // --- plots

  class Plot {
    constructor(host, titles, keepSeconds, height, twoScales = false) {
      this.host = host;
      this.titles = titles;
      this.height = height;
      this.twoScales = twoScales;
      this.keep = keepSeconds;
      this.data = [[], ...titles.map(() => [])];
      this.draw();
      new ResizeObserver(() => this.chart.setSize(this.size())).observe(host);
      document.addEventListener("braid:theme", () => this.draw());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    }

    size() {
      const style = getComputedStyle(this.host);
      const width = this.host.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      return { width: Math.max(120, width), height: this.height };
    }

    draw() {
      this.chart?.destroy();
      const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
      this.chart = new uPlot({
        ...this.size(),
        cursor: { points: { size: 6 } },
        legend: { markers: { width: 0, fill: (_chart, number) => color(`--plot-${number}`) } },
        scales: { y: { range: fromZero }, second: { range: fromZero } },
        axes: [
          { ...axis, space: 80, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800], values: (_chart, ticks) => ticks.map(clock) },
          { ...axis, size: 46, values: (_chart, ticks) => ticks.map(short) },
          ...(this.twoScales ? [{ ...axis, scale: "second", side: 1, size: 46, grid: { show: false }, values: (_chart, ticks) => ticks.map((tick) => `${short(tick)} s`) }] : []),
        ],
        series: [{ label: "UTC", value: (_chart, value) => (value == null ? "" : clock(value)) }, ...this.titles.map((label, number) => ({ label, scale: this.twoScales && number ? "second" : "y", stroke: color(`--plot-${number + 1}`), width: 1.5, points: { show: false }, value: (_chart, value) => short(value) }))],
      }, this.data, this.host);
    }

    add(seconds, values) {
      const times = this.data[0];
      if (times.length && seconds <= times[times.length - 1]) return;
      times.push(seconds);
      values.forEach((value, number) => this.data[number + 1].push(value));
      while (times.length > 2 && times[0] < seconds - this.keep) this.data.forEach((column) => column.shift());
      this.chart.setData(this.data);
    }

    replace(rows) {
      this.data = [rows.map((row) => row[0]), ...this.titles.map((_, number) => rows.map((row) => row[number + 1]))];
      this.chart.setData(this.data);
    }
  }

  // --- the overview: one stream for all plots; what was seen is kept while the tab is open

  const plots = document.getElementById("plots");
  if (plots) {
    const kept = 600;
    const store = "braid:figures:2";
    const protocols = ["flymq", "blipmq", "fq"];
    const per = (now, before, name) => Math.max(0, (now[name] - before[name]) / ((now.time_ms - before.time_ms) / 1000));
    const kinds = {
      throughput: [["in", "pushed"], (now, before) => [per(now, before, "records_in"), per(now, before, "delivered")]],
      bytes: [["received", "sent", "written"], (now, before) => ["received_bytes", "sent_bytes", "written_bytes"].map((name) => per(now, before, name))],
      latency: [
        ["FlyMQ p50", "FlyMQ p99", "BlipMQ p50", "BlipMQ p99", "fq p50", "fq p99"],
        (now) => protocols.flatMap((name) => [now.latency[name].in_p50_ms, now.latency[name].in_p99_ms]),
      ],
      delivery: [
        ["BlipMQ p50", "BlipMQ p99", "fq p50", "fq p99"],
        (now) => protocols.slice(1).flatMap((name) => [now.latency[name].out_p50_ms, now.latency[name].out_p99_ms]),
      ],
      disk: [["commit p99", "sync p99"], (now) => [now.commit_p99_ms, now.fsync_p99_ms]],
      connections: [["FlyMQ", "BlipMQ", "fq"], (now) => protocols.map((name) => now.connections[name] || 0)],
    };
    const drawn = [...plots.querySelectorAll("[data-live]")].map((host) => {
      const [titles, read] = kinds[host.dataset.live];
      return [new Plot(host, titles, kept, 190), read];
    });
    let before = null;
    const seen = [];
    const take = (now) => {
      // Counters of a broker that was started anew begin anew, and a pause is no slow second.
      if (before && now.uptime_s > before.uptime_s && now.time_ms > before.time_ms && now.time_ms - before.time_ms < 5000) {
        for (const [plot, read] of drawn) plot.add(now.time_ms / 1000, read(now, before));
      }
      before = now;
      seen.push(now);
      if (seen.length > kept) seen.shift();
    };
    try {
      JSON.parse(sessionStorage.getItem(store) || "[]").forEach(take);
    } catch (_broken) {
      sessionStorage.removeItem(store);
    }
    for (const [plot] of drawn) plot.chart.setData(plot.data);
    const stream = new EventSource(plots.dataset.stream);
    stream.addEventListener("figures", (event) => {
      take(JSON.parse(event.data));
      plots.dataset.points = String(drawn[0][0].data[0].length);
    });
    addEventListener("pagehide", () => {
      stream.close();
      sessionStorage.setItem(store, JSON.stringify(seen));
    });
  }

  // --- a group's lag

  for (const host of document.querySelectorAll("[data-plot='lag']")) {
    const plot = new Plot(host, ["records", "seconds behind"], 3600, 150, true);
    const look = async () => {
      if (!document.hidden) {
        const answer = await fetch(host.dataset.source, { headers: { Accept: "application/json" } }).catch(() => null);
        if (answer?.ok) {
          const rows = (await answer.json()).samples;
          plot.replace(rows);
          host.dataset.points = String(rows.length);
        }
      }
      setTimeout(look, 5000);
    };
    look();
  }

  // --- a live tail

  const follow = document.getElementById("follow");
  if (follow) {
    const rows = document.querySelector("#messages tbody");
    const most = 500;
    let stream = null;
    const cell = (label, text, kind) => {
      const made = document.createElement("td");
      made.dataset.label = label;
      if (kind) made.className = kind;
      if (typeof text === "string") {
        const inner = document.createElement("span");
        if (!kind) inner.className = "excerpt";
        inner.textContent = text;
        made.append(inner);
      } else made.append(text);
      return made;
    };
    const size = (bytes) => (bytes < 1024 ? `${bytes} B` : bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`);
    const show = (message) => {
      const link = document.createElement("a");
      link.href = `${follow.dataset.base}/${message.partition}/${message.offset}`;
      link.textContent = `${message.partition} / ${message.offset}`;
      const row = document.createElement("tr");
      row.dataset.href = link.href;
      row.className = "fresh";
      const time = new Date(message.timestamp_ms).toISOString().replace("T", " ").replace("Z", "");
      const fault = message.schema_errors?.length ? "does not fit its schema: " : "";
      const binary = /^(avro|protobuf):/.test(message.decoded_as || "");
      const text = binary ? JSON.stringify(message.decoded) : message.value_encoding === "text" ? message.value : `base64 ${message.value}`;
      const value = fault + text.replace(/\s+/g, " ");
      row.append(cell("Partition / offset", link, "num"), cell("Time", time, "time"), cell("Key", message.key ?? "–"), cell("Value", value.slice(0, 400)), cell("Size", size(message.size_bytes), "num"));
      rows.prepend(row);
      while (rows.children.length > most) rows.lastChild.remove();
    };
    const stop = (text) => {
      stream?.close();
      stream = null;
      follow.setAttribute("aria-pressed", "false");
      follow.textContent = text || "Follow live";
    };
    follow.addEventListener("click", () => {
      if (stream) return stop();
      stream = new EventSource(follow.dataset.stream);
      follow.setAttribute("aria-pressed", "true");
      follow.textContent = "Connecting …";
      stream.addEventListener("open", () => (follow.textContent = "Stop following"));
      stream.addEventListener("message", (event) => show(JSON.parse(event.data)));
      stream.addEventListener("problem", (event) => stop(JSON.parse(event.data).detail));
    });
    addEventListener("pagehide", () => stop());
  }
})();
