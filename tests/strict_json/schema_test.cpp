#include "strict_json/schema.h"

#include <limits>

#include "support/catch.h"
#include "support/problem_line.h"

namespace mnist_train::strict_json {
namespace {

enum class Colour { kRed, kGreen };

struct Inner {
  double ratio = 0.5;
  std::vector<std::int64_t> sizes{1, 2};
};

struct Part {
  bool flag = true;
};

struct Outer {
  std::int64_t count = 3;
  std::optional<std::int64_t> limit;
  std::optional<std::int64_t> workers;
  Colour colour = Colour::kRed;
  std::string file = "a.txt";
  std::filesystem::path folder = "/";
  Inner inner;
  Part part;
};

Schema<Outer> outer_schema() {
  Schema<Inner> inner;
  inner.add("ratio", &Inner::ratio, number({0, 1, true, true}), "A ratio.");
  inner.add("sizes", &Inner::sizes, list_of(integer(1, 9)), "Sizes.");
  Schema<Part> part;
  part.add("flag", &Part::flag, boolean(), "A flag.");
  part.check([](Part& owner, const JsonCursor& cursor) {
    if (!owner.flag) cursor.add_error_at("flag", "is down");
  });
  Schema<Outer> schema;
  schema.add("count", &Outer::count, integer(1, 100), "A count.");
  schema.add("limit", &Outer::limit, optional_of(integer(1, 5)), "A limit.");
  schema.add("workers", &Outer::workers, optional_of(integer(1, 5), "auto"), "Workers.");
  schema.add("colour", &Outer::colour, one_of<Colour>({"red", "green"}), "A colour.");
  schema.add("file", &Outer::file, file_name(), "A file.");
  schema.add("folder", &Outer::folder, path(), "A folder.");
  schema.add("inner", &Outer::inner, group(std::move(inner)), "A group.");
  schema.include(&Outer::part, part);
  return schema;
}

struct Outcome {
  Outer outer;
  std::vector<std::string> lines;
};

Node parsed(const std::string& text, Problems& problems) {
  auto node = parse_document(std::make_shared<const Source>(Source{"f", text, "/base"}), problems);
  REQUIRE(node);
  return std::move(*node);
}

Outcome read(const std::string& text) {
  Problems problems;
  const Node node = parsed(text, problems);
  ReadContext context{problems, outer_schema().keys()};
  const auto outer = outer_schema().read(JsonCursor(node, "", context));
  Outcome result{outer.value_or(Outer{}), {}};
  for (const Problem& problem : problems) result.lines.push_back(line_of(problem));
  return result;
}

bool meets(const std::string& text, const Json& condition) {
  Problems problems;
  const Node node = parsed(text, problems);
  ReadContext context{problems, {}};
  return matches(condition, JsonCursor(node, "", context));
}

TEST_CASE("a valid document fills the struct") {
  const auto [outer, lines] = read(R"({"count":100,"limit":5,"workers":2,"colour":"green",
    "file":"x/y.txt","folder":"../d","inner":{"ratio":0.25,"sizes":[]},"flag":true})");
  CHECK(lines.empty());
  CHECK(outer.count == 100);
  CHECK(outer.limit == 5);
  CHECK(outer.workers == 2);
  CHECK(outer.colour == Colour::kGreen);
  CHECK(outer.file == "x/y.txt");
  CHECK(outer.folder == "/d");
  CHECK(outer.inner.ratio == 0.25);
  CHECK(outer.inner.sizes.empty());
}

TEST_CASE("null and auto mean no value") {
  const auto [outer, lines] = read(R"({"limit":null,"workers":"auto"})");
  CHECK(lines.empty());
  CHECK_FALSE(outer.limit);
  CHECK_FALSE(outer.workers);
  CHECK(outer_schema().write(outer)["workers"] == "auto");
  CHECK(outer_schema().write(outer)["limit"].is_null());
}

TEST_CASE("an invalid value is reported in one line") {
  using Case = std::pair<const char*, const char*>;
  const auto [text, line] = GENERATE(values<Case>({
      {R"({"count":"ten"})",
       R"(f:1:10: /count: expected an integer from 1 to 100, found the string "ten")"},
      {R"({"count":null})", "f:1:10: /count: expected an integer from 1 to 100, found null"},
      {R"({"count":0})", "f:1:10: /count: expected an integer from 1 to 100, found 0"},
      {R"({"count":101.0})", "f:1:10: /count: expected an integer from 1 to 100, found 101.0"},
      {R"({"count":1e-999})", "f:1:10: /count: expected an integer from 1 to 100, found 1e-999"},
      {R"({"count":1.5})", "f:1:10: /count: expected an integer from 1 to 100, found 1.5"},
      {R"({"count":99999999999999999999999})",
       "f:1:10: /count: expected an integer from 1 to 100, found 99999999999999999999999"},
      {R"({"count":1e999})", "f:1:10: /count: the number 1e999 is beyond the range of floats"},
      {R"({"limit":"auto"})",
       R"(f:1:10: /limit: expected an integer from 1 to 5 or null, found the string "auto")"},
      {R"({"workers":"all"})",
       R"(f:1:12: /workers: expected an integer from 1 to 5 or "auto", found the string "all")"},
      {R"({"colour":"gren"})", R"(f:1:11: /colour: expected "red" or "green", found the string )"
                               R"("gren"; did you mean "green"?)"},
      {R"({"flag":1})", "f:1:9: /flag: expected true or false, found 1"},
      {R"({"flag":false})", "f:1:9: /flag: is down"},
      {R"({"inner":{"ratio":1.0}})",
       "f:1:19: /inner/ratio: expected a number above 0 and below 1, found 1.0"},
      {R"({"inner":{"sizes":3}})", "f:1:19: /inner/sizes: expected a list, found 3"},
      {R"({"inner":{"sizes":[1,0]}})",
       "f:1:22: /inner/sizes/1: expected an integer from 1 to 9, found 0"},
      {R"({"inner":[]})", "f:1:10: /inner: expected an object, found a list"},
      {R"({"folder":""})", R"(f:1:11: /folder: expected a path, found the string "")"},
      {R"({"folder":"a\u0000b"})",
       "f:1:11: /folder: expected a path, found the string \"a\\x00b\""},
      {R"({"cuont":1})", R"(f:1:2: /cuont: unknown key "cuont"; did you mean "count"?)"},
      {R"({"inner":{"flag":true}})",
       R"(f:1:11: /inner/flag: unknown key "flag"; it belongs at the top level)"},
      {R"([])", "f:1:1: /: expected an object, found a list"},
  }));
  CAPTURE(text);
  CHECK(read(text).lines == std::vector<std::string>{line});
}

TEST_CASE("an integer may be written with a fraction or an exponent") {
  const char* text = GENERATE("10", "10.0", "1e1", "1E+1", "0.1e2", "1000.00e-2");
  CAPTURE(text);
  const auto [outer, lines] = read(std::string(R"({"count":)") + text + "}");
  CHECK(lines.empty());
  CHECK(outer_schema().write(outer)["count"].dump() == "10");
}

TEST_CASE("an integer is read exactly or not at all") {
  using Case = std::pair<const char*, std::optional<std::int64_t>>;
  const auto [text, integer] = GENERATE(values<Case>({
      {"-0.0", 0},
      {"-2.50e2", -250},
      {"1e18", 1'000'000'000'000'000'000},
      {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
      {"9223372036854775808", {}},
      {"9223372036854775808.0", {}},
      {"1e300", {}},
      {"10.5", {}},
      {"1e-1", {}},
      {"1e-999", {}},
      {"1e-9999", {}},
      {"9007199254740993.0", 9007199254740993},  // not a double
      {"\"10\"", {}},
      {"true", {}},
      {"null", {}},
      {"[1]", {}},
  }));
  CAPTURE(text);
  Problems problems;
  const auto source = std::make_shared<const Source>(Source{"f", text, "/"});
  const auto node = parse_document(source, problems);
  REQUIRE(node);
  CHECK(integer_at(*node) == integer);
}

TEST_CASE("the path of a file in the run folder must be relative and stay inside the folder") {
  for (const char* name : {"", "/a", "..", "../a", "a/../b", "./a", "a/", ".", "a\\u0000"}) {
    CAPTURE(name);
    CHECK(read(std::string(R"({"file":")") + name + "\"}").lines.size() == 1);
  }
  for (const char* name : {"a", "a.b", "a/b", "..a", "a b", "ä"}) {
    CAPTURE(name);
    CHECK(read(std::string(R"({"file":")") + name + "\"}").lines.empty());
  }
}

TEST_CASE("all problems are reported at once") {
  CHECK(read(R"({"count":0,"x":1,"inner":{"ratio":2,"y":0},"flag":0})").lines.size() == 5);
}

TEST_CASE("the written document is in table order and survives a round trip") {
  const Outer outer = read(R"({"limit":4,"inner":{"ratio":0.1}})").outer;
  const Json written = outer_schema().write(outer);
  CHECK(written.dump() ==
        R"({"count":3,"limit":4,"workers":"auto","colour":"red","file":"a.txt","folder":"/",)"
        R"("inner":{"ratio":0.1,"sizes":[1,2]},"flag":true})");
  const auto again = read(written.dump());
  CHECK(again.lines.empty());
  CHECK(outer_schema().write(again.outer) == written);
}

TEST_CASE("numbers are written in their shortest exact form") {
  CHECK(number_to_json(0.01).dump() == "0.01");
  CHECK(number_to_json(0.1 + 0.2).dump() == "0.30000000000000004");
  CHECK(number_to_json(60).dump() == "60");
  CHECK(number_to_json(1e-30).dump() == "1e-30");
  CHECK(number_to_json(1e38).get<double>() == 1e38);
}

TEST_CASE("the table of keys can be written as JSON Schema") {
  const Json schema = outer_schema().describe();
  CHECK(schema["type"] == "object");
  CHECK(schema["additionalProperties"] == false);
  const Json& properties = schema["properties"];
  CHECK(properties["count"].dump() ==
        R"({"description":"A count.","type":"integer","minimum":1,"maximum":100,"default":3})");
  CHECK(properties["colour"]["enum"].dump() == R"(["red","green"])");
  CHECK(properties["workers"]["anyOf"].dump() ==
        R"([{"type":"integer","minimum":1,"maximum":5},{"const":"auto"},{"type":"null"}])");
  CHECK(properties["inner"]["properties"]["ratio"]["exclusiveMinimum"] == 0);
  CHECK(properties["inner"]["additionalProperties"] == false);
  CHECK(properties["flag"]["default"] == true);
}

TEST_CASE("conditions are equivalent to their JSON Schema") {
  CHECK(meets(R"({"a":1})", given("a")));
  CHECK_FALSE(meets(R"({"a":null})", given("a")));
  CHECK_FALSE(meets(R"({"b":1})", given("a")));
  CHECK_FALSE(meets("[1]", given("a")));

  CHECK(meets(R"({"a":"x"})", equal("a", "x")));
  CHECK(meets(R"({"a":true})", equal("a", true)));
  CHECK(meets(R"({"a":0.0})", equal("a", 0)));
  CHECK(meets(R"({"a":-3})", equal("a", -3)));
  CHECK_FALSE(meets(R"({"a":1})", equal("a", true)));
  CHECK_FALSE(meets(R"({"a":"1"})", equal("a", 1)));
  CHECK_FALSE(meets("{}", equal("a", 1)));

  CHECK(meets(R"({"a":{"b":2}})", holds("a", equal("b", 2))));
  CHECK_FALSE(meets(R"({"a":{"b":3}})", holds("a", equal("b", 2))));
  CHECK_FALSE(meets(R"({"a":2})", holds("a", equal("b", 2))));

  const Json cpu = {{"const", "cpu"}};
  CHECK(meets(R"({"a":["cuda","cpu"]})", has_item("a", cpu)));
  CHECK_FALSE(meets(R"({"a":["cuda"]})", has_item("a", cpu)));
  CHECK_FALSE(meets(R"({"a":[]})", has_item("a", none_of(cpu))));
  CHECK_FALSE(meets(R"({"a":"cpu"})", has_item("a", cpu)));
}

TEST_CASE("conditions can be combined") {
  const Json one = equal("a", 1);
  const Json two = equal("b", 2);
  CHECK(meets(R"({"a":1,"b":2})", all_of({one, two})));
  CHECK_FALSE(meets(R"({"a":1})", all_of({one, two})));
  CHECK(meets(R"({"a":1})", any_of({one, two})));
  CHECK_FALSE(meets("{}", any_of({one, two})));
  CHECK(meets("{}", none_of(one)));
}

TEST_CASE("unknown keywords in a condition are refused") {
  CHECK_THROWS_AS(meets(R"({"a":1})", holds("a", {{"maximum", 1}})), std::logic_error);
}

TEST_CASE("the error about a rule is at its key, or at the innermost group that exists") {
  Schema<Outer> schema = outer_schema();
  schema.forbid("inner/ratio", {given("limit")}, "conflicts with limit");
  const auto line_for = [&](const std::string& text) {
    Problems problems;
    const Node node = parsed(text, problems);
    ReadContext context{problems, {}};
    (void)schema.read(JsonCursor(node, "", context));
    return problems.empty() ? "" : line_of(problems.front());
  };
  CHECK(line_for(R"({"limit":1,"inner":{"ratio":0.5}})") ==
        "f:1:29: /inner/ratio: conflicts with limit");
  CHECK(line_for(R"({"limit":1,"inner":{}})") == "f:1:20: /inner: conflicts with limit");
  CHECK(line_for(R"({"limit":1})") == "f:1:1: /: conflicts with limit");
  CHECK(line_for(R"({"inner":{"ratio":0.5}})").empty());
  CHECK(schema.describe().at("allOf").dump() ==
        R"([{"description":"inner/ratio: conflicts with limit","not":{"type":"object",)"
        R"("required":["limit"],"properties":{"limit":{"not":{"type":"null"}}}}}])");
}

TEST_CASE("an unknown key gets a suggestion") {
  const std::vector<KnownKey> keys{{"", "epochs"},
                                   {"", "batch_size"},
                                   {"", "model"},
                                   {"", "launch"},
                                   {"/model", "name"},
                                   {"/schedule", "name"},
                                   {"/launch", "max_restarts"},
                                   {"/data", "size"},
                                   {"/data", "train"},
                                   {"/data/train", "images"}};
  struct Case {
    const char* key;
    const char* group;
    const char* message;
    const char* inner = "";
  };
  const Case row = GENERATE(values<Case>({
      {"epoch", "", R"(unknown key "epoch"; did you mean "epochs"?)"},
      {"epo", "", R"(unknown key "epo"; did you mean "epochs"?)"},
      {"eopchs", "", R"(unknown key "eopchs"; did you mean "epochs"?)"},
      {"num_epochs", "", R"(unknown key "num_epochs"; did you mean "epochs"?)"},
      {"bs", "", R"(unknown key "bs"; did you mean "batch_size"?)"},
      {"batchSize", "", R"(unknown key "batchSize"; did you mean "batch_size"?)"},
      {"batch-size", "", R"(unknown key "batch-size"; did you mean "batch_size"?)"},
      {"max_restarts", "", R"(unknown key "max_restarts"; it belongs in /launch)"},
      {"name", "", R"(unknown key "name"; it belongs in /model or in /schedule)"},
      {"epochs", "/launch", R"(unknown key "epochs"; it belongs at the top level)"},
      {"restarts", "", R"(unknown key "restarts"; valid here: epochs, batch_size, model, launch)"},
      {"MaxRestarts", "", R"(unknown key "MaxRestarts"; did you mean "max_restarts" in /launch?)"},
      {"world_size", "",
       R"(unknown key "world_size"; valid here: epochs, batch_size, model, launch)"},
      {"world_size", "/data", R"(unknown key "world_size"; valid here: size, train)"},
      {"train", "", R"(unknown key "train"; it belongs in /data)"},
      {"train", "", R"(unknown key "train"; it belongs in /data)", "images"},
      {"train", "", R"(unknown key "train"; "epochs" belongs at the top level)", "epochs"},
      {"train", "/launch", R"(unknown key "train"; "max_restarts" belongs in /launch)",
       "max_restarts"},
      {"train", "", R"(unknown key "train"; valid here: epochs, batch_size, model, launch)", "lr"},
      {"max_restart", "/model",
       R"(unknown key "max_restart"; did you mean "max_restarts" in /launch?)"},
      {"colour", "/launch", R"(unknown key "colour"; valid here: max_restarts)"},
      {"zz", "", R"(unknown key "zz"; valid here: epochs, batch_size, model, launch)"},
      {"data.size", "", R"(unknown key "data.size"; did you mean {"data": {"size": …}}?)"},
      {"", "/launch", R"(unknown key ""; valid here: max_restarts)"},
  }));
  CHECK(explain_unknown_key(row.key, row.group, keys, row.inner).message == row.message);
}

TEST_CASE("an unknown key is reported with the keys that it may stand for") {
  using Case = std::pair<const char*, std::vector<std::string>>;
  const auto [text, meant] = GENERATE(values<Case>({
      {R"({"cuont":1})", {"/count"}},
      {R"({"ratio":0.5})", {"/inner/ratio"}},
      {R"({"ratioo":0.5})", {"/inner/ratio"}},
      {R"({"inner":{"flag":true}})", {"/flag"}},
      {R"({"inner":{"siz":1}})", {"/inner/sizes"}},
      {R"({"outer":{"count":1}})", {"/count"}},
      {R"({"zzz":1})", {}},
      {R"({"count":0})", {}},
  }));
  CAPTURE(text);
  Problems problems;
  const Node node = parsed(text, problems);
  ReadContext context{problems, outer_schema().keys()};
  (void)outer_schema().read(JsonCursor(node, "", context));
  REQUIRE(problems.size() == 1);
  CHECK(problems.front().hints == meant);
}

TEST_CASE("a very long key is not compared with others and is shown truncated") {
  const auto message = explain_unknown_key(std::string(100000, 'e'), "", {{"", "e"}}).message;
  CHECK(message == "unknown key \"" + std::string(40, 'e') + "…\"; valid here: e");
}

}  // namespace
}  // namespace mnist_train::strict_json
