// `tools` and `tool_choice`. Tools reach the template; the answer is plain text, since this release
// has no parser for the calls that a model writes. Therefore a forced call is refused.
#include <algorithm>
#include <set>

#include "router/openai/json_writer.h"
#include "router/openai/parse_parts.h"

namespace tandem::openai {
namespace {

constexpr size_t kToolNameBytesMax = 64;

bool is_tool_name(std::string_view name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !name.empty() && name.size() <= kToolNameBytesMax &&
         name.find_first_not_of(kAllowed) == name.npos;
}

// Name of a {type:"function",function:{name}} object; empty after a problem.
std::string read_function(const Element& element, const std::string& param, Problems& problems) {
  if (!element.is_object()) {
    problems.add(invalid_type(param, "an object", type_name(element)));
    return {};
  }
  Fields tool(object_of(element), param + ".", problems);
  const std::optional<std::string_view> type = tool.string("type");
  if (!type) {
    if (tool.find("type") == nullptr) problems.add(missing_parameter(tool.path("type")));
    return {};
  }
  if (*type != "function") {
    problems.add(
        unsupported_value(tool.path("type"), "Only tools of type 'function' are supported."));
    return {};
  }
  const Element* inner = tool.find_object("function");
  if (inner == nullptr) {
    if (tool.find("function") == nullptr) problems.add(missing_parameter(tool.path("function")));
    return {};
  }
  Fields function(object_of(*inner), param + ".function.", problems);
  function.string("description");
  function.find_object("parameters");
  function.boolean("strict");
  const std::optional<std::string_view> name = function.string("name");
  if (!name) {
    if (function.find("name") == nullptr) problems.add(missing_parameter(function.path("name")));
    return {};
  }
  if (!is_tool_name(*name)) {
    problems.add(invalid_value(function.path("name"),
                               "expected 1 to 64 letters, digits, underscores and dashes."));
    return {};
  }
  return std::string(*name);
}

struct Tool {
  std::string name;
  Element element;
};

std::vector<Tool> read_tool_list(const Element& array, const std::string& param,
                                 const Limits& limits, Problems& problems) {
  std::vector<Tool> tools;
  for (const Element element : array_of(array)) {
    if (tools.size() >= static_cast<size_t>(limits.tools_max)) {
      check_length_max(array_of(array).size(), tools.size(), param, true, problems);
      break;
    }
    const std::string at = param + "[" + std::to_string(tools.size()) + "]";
    tools.push_back({read_function(element, at, problems), element});
  }
  if (tools.empty()) problems.add(empty_array(param));
  return tools;
}

void refuse_forced_call(Problems& problems) {
  problems.add(unsupported_value("tool_choice",
                                 "'tool_choice' supports only 'none' and 'auto' in this release."));
}

// Keeps those tools that {type:"allowed_tools",allowed_tools:{mode,tools}} names.
void restrict_tools(Fields& choice, const Limits& limits, std::vector<Tool>& tools) {
  Problems& problems = choice.problems();
  const Element* element = choice.find_object("allowed_tools");
  if (element == nullptr) {
    problems.add(missing_parameter("tool_choice.allowed_tools"));
    return;
  }
  Fields allowed(object_of(*element), "tool_choice.allowed_tools.", problems);
  const std::string_view mode = allowed.string("mode").value_or("auto");
  if (mode == "required") return refuse_forced_call(problems);
  if (mode != "auto")
    problems.add(invalid_value("tool_choice.allowed_tools.mode", "expected 'auto' or 'required'."));
  const Element* list = allowed.find_array("tools");
  if (list == nullptr) {
    problems.add(missing_parameter("tool_choice.allowed_tools.tools"));
    return;
  }
  std::set<std::string> names;
  for (const Tool& tool :
       read_tool_list(*list, "tool_choice.allowed_tools.tools", limits, problems))
    names.insert(tool.name);
  std::erase_if(tools, [&names](const Tool& tool) { return !names.contains(tool.name); });
}

void read_tool_choice(Fields& fields, const Limits& limits, std::vector<Tool>& tools) {
  Problems& problems = fields.problems();
  const Element* element = fields.find("tool_choice");
  if (element == nullptr) return;
  if (element->is_string()) {
    const std::string_view word = text_of(*element);
    if (word == "none") {
      tools.clear();
    } else if (word != "auto" && word != "required") {
      problems.add(invalid_value("tool_choice", "expected 'none', 'auto' or 'required'."));
    } else if (tools.empty()) {
      problems.add(invalid_value("tool_choice", "only allowed when 'tools' are specified."));
    } else if (word == "required") {
      refuse_forced_call(problems);
    }
    return;
  }
  if (!element->is_object()) {
    problems.add(invalid_type("tool_choice", "a string or an object", type_name(*element)));
    return;
  }
  if (tools.empty()) {
    problems.add(invalid_value("tool_choice", "only allowed when 'tools' are specified."));
    return;
  }
  Fields choice(object_of(*element), "tool_choice.", problems);
  const Element* type = choice.find("type");
  if (type != nullptr && type->is_string() && text_of(*type) == "allowed_tools")
    return restrict_tools(choice, limits, tools);
  const std::string name = read_function(*element, "tool_choice", problems);
  if (name.empty()) return;
  const bool known = std::any_of(tools.begin(), tools.end(),
                                 [&name](const Tool& tool) { return tool.name == name; });
  if (known) {
    refuse_forced_call(problems);
  } else {
    problems.add(invalid_value("tool_choice", "the named tool is not among 'tools'."));
  }
}

}  // namespace

void read_tools(Fields& fields, const Limits& limits, CompletionRequest& request) {
  fields.boolean("parallel_tool_calls");
  std::vector<Tool> tools;
  if (const Element* array = fields.find_array("tools"))
    tools = read_tool_list(*array, "tools", limits, fields.problems());
  read_tool_choice(fields, limits, tools);
  if (tools.empty()) return;
  JsonWriter json(request.tools);
  json.begin_array();
  for (const Tool& tool : tools) json.raw(json_of(tool.element));
  json.end_array();
}

}  // namespace tandem::openai
