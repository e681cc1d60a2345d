// Small plots as inline SVG, drawn with the colours of the page around them (CSS variables --run0
// to
// --run5, --waiting, --grid, --ink-soft). Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tandem::bench {

constexpr size_t kRunColors = 6;

struct PlotAxis {
  double low = 0.0;
  double high = 1.0;
  bool logarithmic = false;  // Requires: 0 < low < high
  std::string title;
};

struct PlotSeries {
  std::vector<std::pair<double, double>> points;
  std::string color;    // A CSS colour, such as var(--run0)
  bool filled = false;  // Down to the axis, or to `base` where it is given
  std::vector<double> base;
  double line_width = 1.8;
};

// A vertical line with a label at its top.
struct PlotMarker {
  double x = 0.0;
  std::string color;
  std::string label;
};

struct Plot {
  std::string description;  // For people who cannot see it
  PlotAxis x, y;
  std::vector<PlotSeries> series;
  std::vector<PlotMarker> markers;
  double width = 560.0;
  double height = 270.0;
};

std::string run_color(size_t run);
std::string render(const Plot& plot);

// An axis from 0 that ends on a round number at or above `highest`.
PlotAxis axis_from_zero(double highest, std::string title);
// A logarithmic axis over all positive values in [lowest, highest], widened to at least one decade.
PlotAxis log_axis(double lowest, double highest, std::string title);

std::string escape_html(const std::string& text);

}  // namespace tandem::bench
