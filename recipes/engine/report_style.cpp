// CSS of report.html.
#include "recipes/engine/report_style.h"

namespace linnet {

const char* const kReportStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1b1f24; --quiet: #5d6773; --rule: #dfe3e8;
  --grid: #eceff2; --shadow: 0 1px 2px rgb(16 24 40 / 6%), 0 1px 6px rgb(16 24 40 / 5%);
  --s0: #2563eb; --s1: #d9730d; --s2: #0f9d74; --s3: #c2338d; --s4: #7c4ddb; --s5: #0b8fa8;
  --s6: #6f8f14; --s7: #cf3030;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #121519; --card: #1b2026; --text: #e7ebf0; --quiet: #98a3b0; --rule: #2f3740;
    --grid: #272e36; --shadow: none;
    --s0: #6ea0ff; --s1: #f2a24b; --s2: #43cfa3; --s3: #f080c4; --s4: #b096ff; --s5: #4cc9e0;
    --s6: #b3d152; --s7: #ff7d75;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1240px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 36px 0 12px; }
.quiet, .note { color: var(--quiet); }
.note { margin: 8px 0 0; font-size: 13px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin-top: 22px; }
.tile, figure, .card { background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; box-shadow: var(--shadow); }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--quiet); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
  gap: 16px; margin-top: 20px; }
figure { margin: 0; padding: 16px 18px 14px; min-width: 0; }
figcaption { font-weight: 620; margin-bottom: 6px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 12px; fill: var(--quiet); font-variant-numeric: tabular-nums; }
.y-tick { text-anchor: end; }
.x-tick, .x-label, .y-label { text-anchor: middle; }
.grid { stroke: var(--grid); }
.axis, .tick { stroke: var(--quiet); stroke-opacity: 0.6; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.band { opacity: 0.17; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 6px; font-size: 13px;
  color: var(--quiet); }
.legend i { display: inline-block; width: 22px; margin-right: 7px; vertical-align: 4px; }
.card { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 14px; text-align: right; border-top: 1px solid var(--rule);
  white-space: nowrap; }
thead th { border-top: 0; color: var(--quiet); font-weight: 560; font-size: 13px; }
th:first-child, td:first-child { text-align: left; }
pre { margin: 0; padding: 14px 18px; font: 13px/1.55 ui-monospace, "SF Mono", Menlo, Consolas,
  "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin-top: 10px; }
summary { cursor: pointer; padding: 10px 18px; font-weight: 560; }
.problems { border-left: 4px solid var(--s7); padding: 12px 18px; margin-top: 20px; }
.problems ul { margin: 6px 0 0; padding-left: 20px; }
@media print { body { background: none; } .tile, figure, .card { break-inside: avoid; } }
)css";

}  // namespace linnet
