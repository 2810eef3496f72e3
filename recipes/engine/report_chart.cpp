// Scales, ticks and paths.
#include "recipes/engine/report_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "core/error.h"

namespace linnet {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 290;
constexpr double kLeft = 62;
constexpr double kRight = 14;
constexpr double kTop = 12;
constexpr double kBottom = 44;
constexpr size_t kLongSeries = 400;  // points; longer ones are drawn in stretches
constexpr size_t kStretches = 200;
constexpr double kLogarithmicFrom = 50;

struct Scale {
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  double begin = 0;  // pixels
  double end = 1;
  double operator()(double value) const {
    const double fraction =
        logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return begin + fraction * (end - begin);
  }
};

std::string pixels(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

// "5e-4" and "1.5e-7" where printf says "5e-04".
std::string short_power(double value) {
  const int power = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
  char text[32];
  std::snprintf(text, sizeof(text), "%.4ge%d", value / std::pow(10.0, power), power);
  return text;
}

MetricCurve finite_only(const MetricCurve& curve) {
  MetricCurve kept;
  std::copy_if(curve.begin(), curve.end(), std::back_inserter(kept),
               [](const MetricPoint& point) { return std::isfinite(point.value); });
  return kept;
}

std::vector<double> logarithmic_ticks(double low, double high) {
  std::vector<double> ticks;
  const bool wide = high / low > 1e4;
  // The ends lie a little beyond the values: 0, or infinite, for the least and largest numbers.
  constexpr double kLeast = std::numeric_limits<double>::min();
  constexpr double kLargest = std::numeric_limits<double>::max();
  const int first = static_cast<int>(std::floor(std::log10(std::max(low, kLeast))));
  const int last = static_cast<int>(std::ceil(std::log10(std::min(high, kLargest))));
  const int every = std::max(1, (last - first) / 8);
  for (int power = first; power <= last; power += every) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double tick = digit * std::pow(10.0, power);
      if (tick >= low && tick <= high && (digit == 1.0 || !wide)) ticks.push_back(tick);
    }
  }
  return ticks;
}

struct Axes {
  Scale x;
  Scale y;
};

Axes axes_of(const Chart& chart, const std::vector<MetricCurve>& curves) {
  double x_low = HUGE_VAL;
  double x_high = -HUGE_VAL;
  double y_low = HUGE_VAL;
  double y_high = -HUGE_VAL;
  for (const MetricCurve& curve : curves) {
    for (const MetricPoint& point : curve) {
      x_low = std::min(x_low, point.step);
      x_high = std::max(x_high, point.step);
      y_low = std::min(y_low, point.value);
      y_high = std::max(y_high, point.value);
    }
  }
  Axes axes;
  if (x_low == x_high) x_high = x_low + 1;
  axes.x = {x_low, x_high, chart.logarithmic_x, kLeft, kWidth - kRight};
  axes.y.begin = kHeight - kBottom;
  axes.y.end = kTop;
  axes.y.logarithmic = !chart.from_zero && y_low > 0 && y_high > kLogarithmicFrom * y_low;
  if (axes.y.logarithmic) {
    const double margin = std::pow(y_high / y_low, 0.04);
    axes.y.low = y_low / margin;
    axes.y.high = y_high * margin;
  } else {
    if (chart.from_zero) y_low = std::min(y_low, 0.0);
    double margin = 0.05 * (y_high - y_low);
    if (!(margin > 0)) margin = std::max(std::abs(y_high) * 0.1, 1e-12);
    axes.y.low = chart.from_zero && y_low == 0 ? 0 : y_low - margin;
    axes.y.high = y_high + margin;
  }
  return axes;
}

std::string draw_axes(const Axes& axes, const Chart& chart) {
  std::string svg = "<g class=\"axes\">";
  const auto text = [&](double x, double y, const char* kind, const std::string& what) {
    svg += concat("<text class=\"", kind, "\" x=\"", pixels(x), "\" y=\"", pixels(y), "\">",
                  escape_html(what), "</text>");
  };
  const auto line = [&](const char* kind, double x1, double y1, double x2, double y2) {
    svg += concat("<line class=\"", kind, "\" x1=\"", pixels(x1), "\" y1=\"", pixels(y1),
                  "\" x2=\"", pixels(x2), "\" y2=\"", pixels(y2), "\"/>");
  };
  const auto ticks = axes.y.logarithmic ? logarithmic_ticks(axes.y.low, axes.y.high)
                                        : linear_ticks(axes.y.low, axes.y.high, 6);
  for (const double tick : ticks) {
    line("grid", kLeft, axes.y(tick), kWidth - kRight, axes.y(tick));
    text(kLeft - 8, axes.y(tick) + 4, "y-tick", format_tick(tick));
  }
  const auto x_ticks = axes.x.logarithmic ? logarithmic_ticks(axes.x.low, axes.x.high)
                                          : linear_ticks(axes.x.low, axes.x.high, 7);
  for (const double tick : x_ticks) {
    line("tick", axes.x(tick), kHeight - kBottom, axes.x(tick), kHeight - kBottom + 5);
    text(axes.x(tick), kHeight - kBottom + 19, "x-tick", format_tick(tick));
  }
  line("axis", kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom);
  text((kLeft + kWidth - kRight) / 2, kHeight - 6, "x-label", chart.x_label);
  const double middle = (kTop + kHeight - kBottom) / 2;
  svg += concat("<text class=\"y-label\" transform=\"translate(14 ", pixels(middle),
                ") rotate(-90)\">", escape_html(chart.y_label), axes.y.logarithmic ? " (log)" : "",
                "</text></g>");
  return svg;
}

struct Stretches {
  MetricCurve mean;
  MetricCurve low;
  MetricCurve high;
};

Stretches in_stretches(const MetricCurve& curve) {
  Stretches result;
  for (size_t i = 0; i < kStretches; ++i) {
    const size_t begin = curve.size() * i / kStretches;
    const size_t end = curve.size() * (i + 1) / kStretches;
    MetricPoint mean;
    double low = HUGE_VAL;
    double high = -HUGE_VAL;
    for (size_t j = begin; j < end; ++j) {
      mean.step += curve[j].step / static_cast<double>(end - begin);
      mean.value += curve[j].value / static_cast<double>(end - begin);
      low = std::min(low, curve[j].value);
      high = std::max(high, curve[j].value);
    }
    result.mean.push_back(mean);
    result.low.push_back({mean.step, low});
    result.high.push_back({mean.step, high});
  }
  return result;
}

std::string path_through(const Axes& axes, const MetricCurve& curve) {
  std::string path;
  for (const MetricPoint& point : curve) {
    path += concat(path.empty() ? "M" : "L", pixels(axes.x(point.step)), ' ',
                   pixels(axes.y(point.value)));
  }
  return path;
}

std::string draw_series(const Axes& axes, const ChartSeries& series, const MetricCurve& curve,
                        const std::string& x_label) {
  const std::string color = concat("var(--s", series.color % kChartColors, ")");
  std::string svg;
  MetricCurve line = curve;
  if (curve.size() > kLongSeries) {
    Stretches stretches = in_stretches(curve);
    std::reverse(stretches.low.begin(), stretches.low.end());
    std::string outline = path_through(axes, stretches.high);
    std::string back = path_through(axes, stretches.low);
    back[0] = 'L';
    svg += concat("<path class=\"band\" d=\"", outline, back, "Z\" fill=\"", color, "\"/>");
    line = std::move(stretches.mean);
  }
  constexpr const char* kDashes[] = {"", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"2 4\""};
  svg += concat("<path class=\"line\" d=\"", path_through(axes, line), "\" stroke=\"", color, "\"",
                kDashes[series.dash % 3], "/>");
  // A single point has no line, so it is always marked.
  if (!series.dots && curve.size() > 1) return svg;
  for (const MetricPoint& point : line) {
    svg += concat("<circle cx=\"", pixels(axes.x(point.step)), "\" cy=\"",
                  pixels(axes.y(point.value)), "\" r=\"", series.radius, "\" fill=\"", color,
                  "\"><title>", escape_html(series.name), "&#10;", escape_html(x_label), " ",
                  format_tick(point.step), ": ", point.value, "</title></circle>");
  }
  return svg;
}

std::string legend_of(const Chart& chart) {
  constexpr const char* kStyles[] = {"solid", "dashed", "dotted"};
  std::string html = "<div class=\"legend\">";
  for (const ChartSeries& series : chart.series) {
    html += concat("<span><i style=\"border-top:3px ", kStyles[series.dash % 3], " var(--s",
                   series.color % kChartColors, ")\"></i>", escape_html(series.name), "</span>");
  }
  return html + "</div>";
}

}  // namespace

std::vector<double> linear_ticks(double low, double high, int count) {
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double digit : {5.0, 2.0, 1.0}) {
    if (digit * power >= rough * 0.999) step = digit * power;
  }
  std::vector<double> ticks;
  // Counting in whole steps keeps round numbers round. Where doubles are further apart than the
  // steps, counting would never end.
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i <= 3 * count && (first + i) * step <= high + 1e-9 * step; ++i)
    ticks.push_back((first + i) * step);
  return ticks;
}

std::string format_tick(double value) {
  const double size = std::abs(value);
  char text[32];
  if (size >= 1e9)
    std::snprintf(text, sizeof(text), "%.4gG", value / 1e9);
  else if (size >= 1e6)
    std::snprintf(text, sizeof(text), "%.4gM", value / 1e6);
  else if (size >= 1e4)
    std::snprintf(text, sizeof(text), "%.4gk", value / 1e3);
  else if (size >= 1e-2)
    std::snprintf(text, sizeof(text), "%.4g", value);
  else if (size > 0)
    return short_power(value);
  else
    return "0";
  return text;
}

std::string escape_html(std::string_view text) {
  // JSON printing already replaces what is not UTF-8; its quotes and escapes are undone here.
  const std::string valid = parse_json(JsonValue(text).dump(), "text").text();
  std::string html;
  for (const char c : valid) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        // Control characters other than white space are not allowed in HTML.
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t')
          html += c;
        else
          html += "\xEF\xBF\xBD";
    }
  }
  return html;
}

std::string chart_to_html(const Chart& chart) {
  std::vector<MetricCurve> curves;
  size_t points = 0;
  size_t left_out = 0;
  for (const ChartSeries& series : chart.series) {
    curves.push_back(finite_only(series.points));
    points += curves.back().size();
    left_out += series.points.size() - curves.back().size();
  }
  std::string html = concat("<figure><figcaption>", escape_html(chart.title), "</figcaption>");
  if (points > 0) {
    const Axes axes = axes_of(chart, curves);
    html += concat("<svg viewBox=\"0 0 ", kWidth, ' ', kHeight, "\" role=\"img\" aria-label=\"",
                   escape_html(chart.title), " by ", escape_html(chart.x_label), "\">",
                   draw_axes(axes, chart));
    for (size_t i = 0; i < curves.size(); ++i) {
      if (!curves[i].empty()) html += draw_series(axes, chart.series[i], curves[i], chart.x_label);
    }
    html += "</svg>" + legend_of(chart);
  } else {
    html += "<p class=\"note\">No values yet.</p>";
  }
  if (left_out > 0)
    html += concat("<p class=\"note\">", left_out, " values that are not finite are left out.</p>");
  return html + "</figure>\n";
}

}  // namespace linnet
