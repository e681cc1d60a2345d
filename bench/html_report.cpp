#include "bench/html_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/report_plots.h"
#include "bench/summary.h"
#include "bench/svg_plot.h"

namespace tandem::bench {
namespace {

using Runs = std::vector<RunResult>;

constexpr std::string_view kStyle = R"(
:root{--paper:#f6f7f9;--card:#fff;--ink:#1c2430;--ink-soft:#5d6878;--grid:#e4e8ee;--line:#d5dae2;
--run0:#2463d1;--run1:#d9660a;--run2:#0b8a76;--run3:#8a3fb5;--run4:#c2244f;--run5:#6b7a12;
--waiting:#9aa4b2;--good:#0b7d53;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--paper:#12161c;--card:#1a2028;--ink:#e6eaf0;
--ink-soft:#98a3b3;--grid:#29313c;--line:#333d4a;
--run0:#6ea2ff;--run1:#ff9d4d;--run2:#45c9b2;--run3:#c58bea;--run4:#ff7596;
--run5:#b9c955;--waiting:#6d7887;--good:#5fce9c;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:36px 24px 48px}
h1{font-size:25px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
.load{font-size:16px;margin:0}.when{color:var(--ink-soft);margin:2px 0 0}
.runs{display:flex;flex-wrap:wrap;gap:8px 22px;margin:16px 0 0;padding:0;list-style:none}
.runs span{color:var(--ink-soft)}
.dot{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:7px}
.tiles{display:grid;grid-auto-flow:column;grid-auto-columns:minmax(0,1fr);gap:12px;
margin:24px 0 14px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px}
.tile{padding:13px 14px}
.tile h3{margin:0 0 6px;font-size:13px;font-weight:500;color:var(--ink-soft)}
.tile p{margin:0;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.35}
.tiles.many .tile p{font-size:18px}
.tile small{font-size:13px;font-weight:400;color:var(--ink-soft);margin-left:4px}
.plots{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}
.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(280px,1fr));gap:14px}
.wide{grid-column:1/-1}
@media(max-width:980px){.tiles{grid-auto-flow:row;
grid-template-columns:repeat(auto-fit,minmax(150px,1fr))}}
@media(max-width:820px){.plots{grid-template-columns:minmax(0,1fr)}}
.card h2{font-size:15px;margin:0}p.sub{margin:1px 0 8px;color:var(--ink-soft);font-size:13px}
svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--ink-soft)}
svg text.note{font-weight:600;fill:revert-layer}
.grid{stroke:var(--grid)}.base,.mark{stroke:var(--line)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
th,td{padding:5px 10px;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}
thead th{border-bottom:1px solid var(--line);font-weight:600;vertical-align:bottom}
tbody th{font-weight:600;text-align:left;padding-top:16px}tbody tr:first-child th{padding-top:0}
tbody td{border-bottom:1px solid var(--grid)}td.unit,td.ratio{color:var(--ink-soft)}
td.better{color:var(--good)}td.worse{color:var(--bad)}
section{margin-top:14px}.fail td:first-child{text-align:left;white-space:normal}
footer{margin-top:22px;color:var(--ink-soft);font-size:13px}
)";

std::string dot(size_t run) {
  return fmt::format("<i class=\"dot\" style=\"background:{}\"></i>", run_color(run));
}

std::string header(const Runs& runs) {
  std::string out = fmt::format(
      "<h1>{}</h1><p class=\"load\">{}</p><p class=\"when\">{} UTC</p><ul class=\"runs\">",
      runs.size() > 1 ? "Load test, side by side" : "Load test", escape_html(runs[0].load),
      runs[0].date);
  for (size_t i = 0; i < runs.size(); ++i) {
    out += fmt::format("<li>{}<b>{}</b> <span>{} at {}</span></li>", dot(i),
                       escape_html(runs[i].label.empty() ? runs[i].model : runs[i].label),
                       escape_html(runs[i].model), escape_html(runs[i].url));
  }
  return out + "</ul>";
}

template <class Value>
std::string tile(const Runs& runs, const std::string& title, const std::string& unit, int decimals,
                 Value value) {
  std::string out = fmt::format("<div class=\"card tile\"><h3>{}</h3>", title);
  for (size_t i = 0; i < runs.size(); ++i) {
    out += fmt::format("<p>{}{}<small>{}</small></p>", runs.size() > 1 ? dot(i) : "",
                       format_number(value(runs[i]), decimals), unit);
  }
  return out + "</div>";
}

std::string tiles(const Runs& runs) {
  using R = const RunResult&;
  std::string out = fmt::format("<div class=\"tiles{}\">", runs.size() > 1 ? " many" : "");
  if (runs[0].interference) {
    out += tile(runs, "Longest gap / median", "x", 1,
                [](R r) { return r.interference->ratio(100.0); });
    out +=
        tile(runs, "Gap p99.9 / median", "x", 1, [](R r) { return r.interference->ratio(99.9); });
  } else {
    out += tile(runs, "Requests", "/s", 2, [](R r) { return r.requests_per_s; });
  }
  out += tile(runs, "Output", "tokens/s", 0, [](R r) { return r.output_tokens_per_s; });
  if (runs[0].good_requests_per_s)
    out +=
        tile(runs, "Good requests", "/s", 2, [](R r) { return r.good_requests_per_s.value_or(0); });
  out += tile(runs, "First token median", "ms", 0, [](R r) { return r.ttft_ms.median(); });
  out += tile(runs, "First token p99", "ms", 0, [](R r) { return r.ttft_ms.percentile(99.0); });
  out += tile(runs, "Per token median", "ms", 1, [](R r) { return r.tpot_ms.median(); });
  out += tile(runs, "Failed", "", 0, [](R r) { return static_cast<double>(r.failed); });
  return out + "</div>";
}

std::string card(const std::string& title, const std::string& text, const std::string& body,
                 bool wide = false) {
  return fmt::format("<div class=\"card{}\"><h2>{}</h2><p class=\"sub\">{}</p>{}</div>",
                     wide ? " wide" : "", title, text, body);
}

std::string plots(const Runs& runs) {
  std::string out = "<div class=\"plots\">";
  const bool mixed = runs[0].interference.has_value();
  if (mixed) {
    Plot stalls = stall_plot(runs);
    stalls.width = 1130.0;
    stalls.height = 290.0;
    out +=
        card("Longest gap between tokens, over time",
             "Steady streams only. Every spike is a moment in which somebody's text stood still.",
             render(stalls), true);
  }
  out += card("Time to first token", "How many requests waited how long for their first token.",
              render(ttft_plot(runs)));
  out += card("Gaps between tokens",
              mixed ? "Steady streams only. A steep fall is an even stream; a long foot is a stall."
                    : "A steep fall is an even stream; a long foot is a stall.",
              render(gap_plot(runs)));
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string legend = fmt::format(
        "{}running &nbsp; <i class=\"dot\" style=\"background:var(--waiting)\"></i>waiting "
        "for the first token",
        dot(i));
    const std::string title = runs.size() > 1
                                  ? "Requests in the server: " + escape_html(runs[i].label)
                                  : "Requests in the server";
    out += card(title, legend, render(load_plot(runs, i)));
  }
  // An even number of cards in a row of two; the last one fills what is left.
  const bool wide = runs.size() % 2 == 0;
  Plot throughput = throughput_plot(runs);
  if (wide) throughput.width = 1130.0;
  out += card("Throughput", "Output tokens read per second.", render(throughput), wide);
  return out + "</div>";
}

std::string ratio_cell(const SummaryRow& row, double value) {
  const double first = row.values[0];
  if (row.neutral || !(first > 0.0)) return "<td></td>";
  const double ratio = value / first;
  const bool same = ratio > 0.97 && ratio < 1.03;
  const bool better = row.higher_is_better ? ratio > 1.0 : ratio < 1.0;
  return fmt::format("<td class=\"{}\">{:.2f}x</td>",
                     same     ? "ratio"
                     : better ? "better"
                              : "worse",
                     ratio);
}

// Several runs: every figure of each beside the other, with ratios to the first.
std::string comparison_table(const Options& options, const Runs& runs) {
  std::string out = "<section class=\"card\"><div class=\"scroll\"><table><thead><tr><th></th>";
  for (size_t i = 0; i < runs.size(); ++i) {
    out += fmt::format("<th>{}{}</th>", dot(i), escape_html(runs[i].label));
    if (i > 0) out += "<th>ratio</th>";
  }
  out += "</tr></thead><tbody>";
  for (const SummarySection& section : summarize(options, runs)) {
    out += fmt::format("<tr><th colspan=\"{}\">{}</th></tr>", 2 * runs.size(), section.title);
    for (const SummaryRow& row : section.rows) {
      out += fmt::format("<tr><td>{}{}</td>", escape_html(row.name),
                         row.unit.empty() ? "" : fmt::format(" ({})", row.unit));
      for (size_t i = 0; i < row.values.size(); ++i) {
        out += fmt::format("<td>{}</td>", format_number(row.values[i], row.decimals));
        if (i > 0) out += ratio_cell(row, row.values[i]);
      }
      out += "</tr>";
    }
  }
  return out + "</tbody></table></div></section>";
}

// One run: counts side by side, and all latencies in one table with a column per statistic.
std::string single_table(const Options& options, const Runs& runs) {
  constexpr std::string_view kClose = "</tbody></table></div></div>";
  std::string counts, heads, latencies;
  for (const SummarySection& section : summarize(options, runs)) {
    if (section.latency) {
      heads.clear();
      latencies += fmt::format("<tr><td>{}</td>", section.title);
      for (const SummaryRow& row : section.rows) {
        heads += fmt::format("<th>{}</th>", row.name);
        latencies += fmt::format("<td>{}</td>", format_number(row.values[0], row.decimals));
      }
      latencies += "</tr>";
      continue;
    }
    counts += fmt::format(
        "<div class=\"card\"><div class=\"scroll\"><table><tbody><tr><th "
        "colspan=\"2\">{}</th></tr>",
        section.title);
    for (const SummaryRow& row : section.rows) {
      counts += fmt::format("<tr><td>{}{}</td><td>{}</td></tr>", escape_html(row.name),
                            row.unit.empty() ? "" : fmt::format(" ({})", row.unit),
                            format_number(row.values[0], row.decimals));
    }
    counts += kClose;
  }
  if (!latencies.empty()) {
    latencies = fmt::format(
        "<section class=\"card\"><div class=\"scroll\"><table><thead><tr><th>Latency (ms)</th>{}"
        "</tr></thead><tbody>{}</tbody></table></div></section>",
        heads, latencies);
  }
  return "<section class=\"tables\">" + counts + "</section>" + latencies;
}

std::string failures(const Runs& runs) {
  std::string rows;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const auto& [reason, count] : runs[i].failures)
      rows += fmt::format("<tr><td>{}{}</td><td>{}</td></tr>", runs.size() > 1 ? dot(i) : "",
                          escape_html(reason), count);
  if (rows.empty()) return {};
  return "<section class=\"card\"><h2>Failed requests</h2><table class=\"fail\"><tbody>" + rows +
         "</tbody></table></section>";
}

}  // namespace

std::string html_report(const Options& options, const Runs& runs) {
  const bool any =
      std::any_of(runs.begin(), runs.end(), [](const RunResult& run) { return run.completed > 0; });
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<title>Load test: {}</title><style>{}</style></head><body><main>{}{}{}{}{}"
      "<footer>Time to first token: send to first content. Time per output token: (end to end - "
      "first "
      "token) / (output tokens - 1), per request. Gaps: every pause between two content chunks. "
      "Failed "
      "requests are in none of them.</footer></main></body></html>\n",
      escape_html(runs[0].load), kStyle, header(runs), tiles(runs), any ? plots(runs) : "",
      failures(runs),
      runs.size() > 1 ? comparison_table(options, runs) : single_table(options, runs));
}

}  // namespace tandem::bench
