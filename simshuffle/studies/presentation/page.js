"use strict";
(() => {
  const tip = document.getElementById("tip");

  // ------------------------------------------------------------------------------------ tooltips

  const hide = () => { tip.hidden = true; };
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
    const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  };
  const tooltip = (handler, event, item, value) => {
    if (value === null || value === undefined || value === "") hide();
    else show(String(value), event.clientX, event.clientY);
  };

  // -------------------------------------------------------------------------------------- charts

  const MARKS = ".role-mark [role='graphics-symbol'][aria-label]";
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 20, PageUp: -20 };

  // links are drawn with the busiest on top, and visited from it on; what is under them follows
  const marks = (plot) => {
    const all = [...plot.querySelectorAll(MARKS)];
    const links = all.filter((mark) => mark.closest(".mark-rule")).reverse();
    return links.length ? [...links, ...all.filter((mark) => !mark.closest(".mark-rule"))] : all;
  };
  const rove = (plot) => {
    const all = marks(plot);
    const chosen = all.find((mark) => mark === document.activeElement) ?? all[0];
    for (const mark of all) {
      const wanted = mark === chosen ? "0" : "-1";
      if (mark.getAttribute("tabindex") !== wanted) mark.setAttribute("tabindex", wanted);
    }
  };
  const watch = (plot) => {
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { hide(); return; }
      const all = marks(plot);
      const at = all.indexOf(event.target);
      if (at < 0) return;
      let next = at;
      if (event.key in STEPS) next = Math.min(all.length - 1, Math.max(0, at + STEPS[event.key]));
      else if (event.key === "Home") next = 0;
      else if (event.key === "End") next = all.length - 1;
      else return;
      event.preventDefault();
      event.target.setAttribute("tabindex", "-1");
      all[next].setAttribute("tabindex", "0");
      all[next].focus();
    });
    plot.addEventListener("focusin", (event) => {
      const text = event.target.getAttribute("aria-label");
      if (!event.target.matches(MARKS) || !text) return;
      const box = event.target.getBoundingClientRect();
      show(text, box.left + box.width / 2, box.top + box.height / 2);
    });
    plot.addEventListener("focusout", hide);
    let asked = false;
    const again = () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => { asked = false; rove(plot); });
    };
    new MutationObserver(again).observe(plot, { childList: true, subtree: true });
    rove(plot);
  };

  const look = {
    background: "transparent",
    font: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif",
    axis: {
      labelColor: "var(--text)", titleColor: "var(--soft)", domainColor: "var(--line)",
      tickColor: "var(--line)", gridColor: "var(--line)", labelFontSize: 12, titleFontSize: 12,
      titleFontWeight: "normal", labelLimit: 340,
    },
    legend: {
      labelColor: "var(--text)", titleColor: "var(--soft)", orient: "top", labelFontSize: 12,
      titleFontSize: 12, titleFontWeight: "normal", labelLimit: 300, columns: 0,
    },
    view: { stroke: null },
  };
  // large tables are on the page without the names of their columns in every row
  const records = ([name, { columns, rows }]) => [name, rows.map((row) => (
    Object.fromEntries(columns.map((column, place) => [column, row[place]]))))];
  const draw = async (figure) => {
    const plot = figure.querySelector(".plot");
    try {
      const { spec, tables } = JSON.parse(figure.querySelector("script").textContent);
      spec.datasets = Object.fromEntries(Object.entries(tables).map(records));
      const options = {
        actions: false, renderer: "svg", ast: true, defaultStyle: false, tooltip, config: look,
      };
      await vegaEmbed(plot, spec, options);
      watch(plot);
    } catch (error) {
      plot.textContent = `This chart could not be drawn: ${error.message}`;
      plot.classList.add("fault");
      console.error(error);
    }
  };

  // -------------------------------------------------------------------------------------- tables

  const POWERS = { n: -9, u: -6, "µ": -6, m: -3, k: 3, M: 6, G: 9, T: 12, P: 15 };
  const NUMBER = /^[<>~±]?\s*([-+\u2212]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*([a-zA-Zµ]*)/;
  const measure = (text) => {
    const found = NUMBER.exec(text);
    if (!found) return null;
    const number = Number(found[1].replaceAll(",", "").replace("\u2212", "-"));
    const unit = /^([numkMGTPµ])(B|s|bit)$/.exec(found[2]);
    return unit ? number * 10 ** POWERS[unit[1]] : number;
  };
  const isNone = (text) => text === "" || text === "-";

  // a cell that is empty at the left means what stands above it
  const filled = (rows) => {
    const above = [];
    for (const row of rows) {
      for (const [place, cell] of row.entries()) {
        if (cell.style.textAlign === "right") break;
        if (cell.textContent !== "") { above[place] = cell.textContent; break; }
        if (above[place] === undefined) break;
        cell.textContent = above[place];
        cell.dataset.filled = "";
      }
    }
  };
  const sort = (table, head) => {
    const body = table.tBodies[0];
    const place = [...head.parentElement.cells].indexOf(head);
    const before = head.getAttribute("aria-sort");
    const order = { ascending: "descending", descending: null }[before] ?? (before ? null : "ascending");
    if (!table.inOrder) table.inOrder = [...body.rows];
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    if (order === null) {
      for (const cell of body.querySelectorAll("[data-filled]")) {
        cell.textContent = "";
        delete cell.dataset.filled;
      }
      body.append(...table.inOrder);
      return;
    }
    head.setAttribute("aria-sort", order);
    filled(table.inOrder.map((row) => [...row.cells]));
    const sign = order === "ascending" ? 1 : -1;
    const cells = table.inOrder.map((row) => ({ row, text: row.cells[place].textContent.trim() }));
    const there = cells.filter((cell) => !isNone(cell.text));
    const numbers = there.every((cell) => (cell.value = measure(cell.text)) !== null);
    there.sort((a, b) => sign * (numbers
      ? a.value - b.value
      : a.text.localeCompare(b.text, "en", { numeric: true })));
    body.append(...there.map((cell) => cell.row),
      ...cells.filter((cell) => isNone(cell.text)).map((cell) => cell.row));
  };
  document.addEventListener("click", (event) => {
    const head = event.target.closest?.("th");
    if (head && event.target.closest("button")) sort(head.closest("table"), head);
  });

  // ---------------------------------------------------------------------------------------- page

  // texts that are tables of their own keep their columns
  for (const text of document.querySelectorAll("pre")) {
    if (/\S {3,}\S/.test(text.textContent)) {
      text.classList.add("wide");
      text.tabIndex = 0;
    }
  }
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
  addEventListener("scroll", hide, { passive: true });
  Promise.all([...document.querySelectorAll("figure.chart")].map(draw)).then(() => {
    document.documentElement.dataset.ready = "true";
  });
})();
