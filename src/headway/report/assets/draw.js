// Draws every chart of the page. Colours are CSS variables of the page, so that charts follow its scheme (light, dark
// or print) without a redraw.
(() => {
  "use strict";
  const soft = "var(--soft)", line = "var(--line)", mark = "var(--mark)";
  const config = {
    background: null,
    font: "system-ui, -apple-system, 'Segoe UI', sans-serif",
    padding: { left: 2, right: 10, top: 6, bottom: 2 },
    axis: {
      labelColor: soft, titleColor: soft, domainColor: line, tickColor: line, gridColor: line,
      labelFontSize: 11, titleFontSize: 11, titleFontWeight: 400, labelOverlap: true,
    },
    axisX: { labelFlush: true },
    legend: { symbolBaseFillColor: mark, labelColor: soft, titleColor: soft, labelFontSize: 11, titleFontSize: 11 },
    view: { stroke: null },
    style: { target: { stroke: mark, color: mark } },
    range: { heatmap: Array.from({ length: 9 }, (_, level) => `var(--h${level})`) },
  };
  const options = {
    mode: "vega-lite", renderer: "svg", actions: false, config,
    ast: true, // interpret expressions: the page's policy forbids eval
    tooltip: { disableDefaultStyle: true },
  };
  document.documentElement.classList.add("drawn");
  for (const source of document.querySelectorAll("script[data-chart]")) {
    const box = document.getElementById(source.dataset.chart);
    window.vegaEmbed(box, JSON.parse(source.textContent), options).catch((error) => {
      box.textContent = "This chart could not be drawn; the table below contains its figures.";
      console.error(error);
    });
  }
})();
