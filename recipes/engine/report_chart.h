// Line charts as SVG, coloured by the style sheet of the report.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/report_data.h"

namespace linnet {

struct ChartSeries {
  std::string name;
  MetricCurve points;
  int color = 0;      // 0 to kChartColors - 1: CSS variable --s0, --s1, ...
  int dash = 0;       // 0 solid, 1 dashed, 2 dotted
  bool dots = false;  // a mark with a tool tip at every point
  double radius = 3;  // of the marks, in pixels
};
inline constexpr int kChartColors = 8;

struct Chart {
  std::string title;
  std::string y_label;
  std::vector<ChartSeries> series;
  bool from_zero = false;  // the axis starts at 0
  std::string x_label = "step";
  bool logarithmic_x = false;  // values are positive then
};

// An HTML <figure>: title, legend, SVG with axes, ticks and labels. Long series are drawn as the
// mean of equal stretches inside a band from the smallest to the largest value. Non-finite values
// are left out and counted below the chart. The axis is logarithmic where positive values span
// more than a factor of 50 and it need not start at 0.
std::string chart_to_html(const Chart& chart);

// Round positions for ticks that cover [low, high], about `count` of them.
std::vector<double> linear_ticks(double low, double high, int count);
// "0", "0.25", "1.5k", "2M", "5e-4".
std::string format_tick(double value);
// Text made safe for HTML contents and attributes; bytes that are not UTF-8 become U+FFFD.
std::string escape_html(std::string_view text);

}  // namespace linnet
