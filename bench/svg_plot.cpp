#include "bench/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem::bench {
namespace {

constexpr double kLeft = 54.0, kRight = 14.0, kTop = 26.0, kBottom = 42.0;

struct Frame {
  const Plot& plot;

  double x(double value) const {
    return kLeft + share(plot.x, value) * (plot.width - kLeft - kRight);
  }
  double y(double value) const {
    return plot.height - kBottom - share(plot.y, value) * (plot.height - kTop - kBottom);
  }
  static double share(const PlotAxis& axis, double value) {
    const double part = axis.logarithmic ? std::log(std::max(value, axis.low) / axis.low) /
                                               std::log(axis.high / axis.low)
                                         : (value - axis.low) / (axis.high - axis.low);
    return std::clamp(part, 0.0, 1.0);
  }
};

double round_step(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0})
    if (rough <= factor * power * 1.0001) return factor * power;
  return 10.0 * power;
}

std::vector<double> ticks_of(const PlotAxis& axis) {
  std::vector<double> ticks;
  if (!axis.logarithmic) {
    const double step = round_step((axis.high - axis.low) / 5.0);
    for (int i = 0; axis.low + i * step <= axis.high + step * 1e-6; ++i)
      ticks.push_back(axis.low + i * step);
    return ticks;
  }
  const double decades = std::log10(axis.high / axis.low);
  for (double power = std::floor(std::log10(axis.low)); power <= std::ceil(std::log10(axis.high));
       ++power) {
    for (double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1.0 && decades > 2.2) continue;
      const double tick = factor * std::pow(10.0, power);
      if (tick >= axis.low * 0.999 && tick <= axis.high * 1.001) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string tick_label(double value) {
  if (std::abs(value) >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (std::abs(value) >= 1e4) return fmt::format("{:g}k", value / 1e3);
  if (value == std::floor(value) && value >= 1000.0)
    return fmt::format("{:.0f},{:03.0f}", std::floor(value / 1000.0), std::fmod(value, 1000.0));
  return fmt::format("{:g}", value);
}

std::string axes(const Frame& frame) {
  const Plot& plot = frame.plot;
  const double right = plot.width - kRight, bottom = plot.height - kBottom;
  std::string out;
  for (double tick : ticks_of(plot.y)) {
    const double y = frame.y(tick);
    out += fmt::format(
        "<line class=\"grid\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>"
        "<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
        kLeft, y, right, y, kLeft - 7.0, y + 3.5, tick_label(tick));
  }
  for (double tick : ticks_of(plot.x)) {
    out += fmt::format(
        "<line class=\"mark\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>"
        "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>",
        frame.x(tick), bottom, bottom + 4.0, bottom + 17.0, tick_label(tick));
  }
  out += fmt::format("<line class=\"base\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>", kLeft,
                     bottom, right, bottom);
  out += fmt::format("<text class=\"axis\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                     (kLeft + right) / 2.0, plot.height - 6.0, escape_html(plot.x.title));
  out += fmt::format("<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"start\">{}</text>", 4.0,
                     10.0, escape_html(plot.y.title));
  return out;
}

std::string series_path(const Frame& frame, const PlotSeries& series) {
  if (series.points.empty()) return {};
  std::string line;
  for (const auto& [x, y] : series.points)
    line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", frame.x(x), frame.y(y));
  std::string out;
  if (series.filled) {
    std::string area = line;
    for (size_t i = series.points.size(); i-- > 0;) {
      const double base = series.base.empty() ? frame.plot.y.low : series.base[i];
      area += fmt::format("L{:.1f} {:.1f}", frame.x(series.points[i].first), frame.y(base));
    }
    out += fmt::format("<path d=\"{}Z\" fill=\"{}\" fill-opacity=\".22\"/>", area, series.color);
  }
  return out + fmt::format(
                   "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" "
                   "stroke-linejoin=\"round\"/>",
                   line, series.color, series.line_width);
}

std::string marker_path(const Frame& frame, const PlotMarker& marker, size_t row) {
  const double x = frame.x(marker.x);
  const bool left_half = x < frame.plot.width * 0.7;
  return fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"{3}\" "
      "stroke-dasharray=\"3 3\"/><text class=\"note\" x=\"{4:.1f}\" y=\"{5:.1f}\" "
      "text-anchor=\"{6}\" fill=\"{3}\">{7}</text>",
      x, kTop, frame.plot.height - kBottom, marker.color, left_half ? x + 5.0 : x - 5.0,
      kTop + 9.0 + 13.0 * static_cast<double>(row), left_half ? "start" : "end",
      escape_html(marker.label));
}

}  // namespace

std::string run_color(size_t run) { return fmt::format("var(--run{})", run % kRunColors); }

std::string render(const Plot& plot) {
  const Frame frame{plot};
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
                                plot.width, plot.height, escape_html(plot.description));
  out += axes(frame);
  for (const PlotSeries& series : plot.series) out += series_path(frame, series);
  for (size_t i = 0; i < plot.markers.size(); ++i) out += marker_path(frame, plot.markers[i], i);
  return out + "</svg>";
}

PlotAxis axis_from_zero(double highest, std::string title) {
  if (!(highest > 0.0)) return {0.0, 1.0, false, std::move(title)};
  const double step = round_step(highest / 5.0);
  return {0.0, step * std::ceil(highest / step - 1e-9), false, std::move(title)};
}

PlotAxis log_axis(double lowest, double highest, std::string title) {
  double low = std::max(lowest, 1e-9);
  double high = std::max(highest, low);
  if (high < low * 10.0) {
    const double middle = std::sqrt(low * high);
    low = middle / std::sqrt(10.0);
    high = middle * std::sqrt(10.0);
  }
  return {low, high, true, std::move(title)};
}

std::string escape_html(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace tandem::bench
