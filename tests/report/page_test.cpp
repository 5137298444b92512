#include "report/page/page.h"

#include <nlohmann/json.hpp>
#include <regex>

#include "base/file.h"
#include "base/system.h"
#include "report/page/html.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/run_folder.h"

namespace mnist_train::report {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::PretendedRun;
using testing::TempFolder;
using testing::write_pretended_run;

std::string page_of(const TempFolder& folder, const std::string& name = "run") {
  RunReader reader(folder.path() / name);
  return make_page({&reader.read(), 1});
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST_CASE("HTML's own characters, control bytes and broken UTF-8 cannot come through") {
  using Case = std::pair<std::string, std::string>;
  const auto [text, expected] = GENERATE(values<Case>({
      {"<b a='x' c=\"y\">&", "&lt;b a=&#39;x&#39; c=&quot;y&quot;&gt;&amp;"},
      {"grüße €😀", "grüße €😀"},
      {"tab\tand\nline", "tab\tand\nline"},
      {std::string("a\0b\x1b[0m\x7f", 8), "a\uFFFDb\uFFFD[0m\uFFFD"},
      {"\xff\xfe", "\uFFFD\uFFFD"},
      {"\xc3", "\uFFFD"},
      {"\xc0\xbc", "\uFFFD\uFFFD"},
      {"\xe0\x80\xbc", "\uFFFD\uFFFD\uFFFD"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
  }));
  CHECK(escape_html(text) == expected);
}

TEST_CASE("numbers are written for people") {
  CHECK(percent(0.98765) == "98.77 %");
  CHECK(percent(std::nan("")) == "–");
  CHECK(duration(78.74) == "78.7 s");
  CHECK(duration(1265) == "21 min 5 s");
  CHECK(duration(11530) == "3 h 12 min");
  CHECK(short_duration(0.01234) == "12.3 ms");
  CHECK(count(1234567.4) == "1,234,567");
  CHECK(byte_size(323e6) == "323 MB");
  CHECK(date_and_time(1800000000) == "2027-01-15 08:00:00 UTC");
}

TEST_CASE("a page answers the four questions") {
  const TempFolder folder;
  write_pretended_run(folder, "run");
  const std::string page = page_of(folder);
  CHECK_THAT(page,
             ContainsSubstring(
                 "Yes: test accuracy is 96.67 % after epoch 3, and was 90.00 % after epoch 1; "
                 "random predictions would reach 50.0 %."));
  CHECK_THAT(
      page,
      ContainsSubstring(
          "6 of 104 test images (5.77 %). Most often a <b>0</b> is taken for a <b>1</b> (3×)"));
  CHECK_THAT(
      page,
      ContainsSubstring(
          "14.5 s, 52 % of it for compute. From the command to the first step it took 250 ms."));
  CHECK_THAT(
      page,
      ContainsSubstring(
          "Model <b>net</b>, sgd with learning rate 0.01, global batch 128, 10 epochs, seed 1."));
  for (const char* fact :
       {"xxh3-128:c0ff", "xxh3-128:da7a", "libtorch 2.11.0", "2 processes, cpu, fp32",
        "1,000 training, 100 test images of 1×28×28, 2 classes", "Once, without restarts."}) {
    CHECK_THAT(page, ContainsSubstring(fact));
  }
}

TEST_CASE("classes go by their names where the data have names") {
  const TempFolder folder;
  write_pretended_run(folder, "run");
  folder.write("run/lineage.jsonl",
               R"({"data":{"classes":2,"class_names":["T-shirt/top","<Bag>"]}})"
               "\n");
  const std::string page = page_of(folder);
  for (const char* text :
       {"Most often <b>T-shirt/top</b> is taken for <b>&lt;Bag&gt;</b> (3×)",
        "title=\"T-shirt/top taken for &lt;Bag&gt;: 3\"",
        "<th scope=\"col\"><span>&lt;Bag&gt;</span></th>", "test image 9: T-shirt/top\"",
        "<td>T-shirt/top</td><td class=\"bad\">&lt;Bag&gt;</td>",
        "aria-label=\"&lt;Bag&gt;: 80.0 %"}) {
    CHECK_THAT(page, ContainsSubstring(text));
  }
  CHECK_THAT(page, !ContainsSubstring("<Bag>"));
  write_pretended_run(folder, "other");
  const std::string both = page_on({folder.path() / "run", folder.path() / "run"});
  CHECK_THAT(both, ContainsSubstring("<tr><th scope=\"row\">T-shirt/top</th>"));
  const std::string apart = page_on({folder.path() / "run", folder.path() / "other"});
  CHECK_THAT(apart, ContainsSubstring("<tr><th scope=\"row\">0</th>"));
}

TEST_CASE(
    "wrong predictions come first, the most confident first, then right ones, the least confident "
    "first") {
  const TempFolder folder;
  write_pretended_run(folder, "run");
  const std::string page = page_of(folder);
  std::vector<int> ids;
  const std::regex id("alt=\"test image ([0-9]+)");
  for (auto match = std::sregex_iterator(page.begin(), page.end(), id);
       match != std::sregex_iterator(); ++match) {
    ids.push_back(std::stoi((*match)[1]));
  }
  CHECK(ids == std::vector<int>{9, 5, 1, 0, 2, 3, 4, 6, 7, 8, 10, 11});
}

TEST_CASE("nothing is loaded and nothing of a run becomes code") {
  const TempFolder folder;
  const std::string hostile = "\"><script>alert(1)</script><img src=x onerror=alert(2)>";
  const std::string name = "x'\"<b>&amp;";
  write_pretended_run(folder, name);
  folder.write(name + "/config.json",
               R"({"model":{"name":"\"><script>alert(1)</script>"},"seed":"<i>"})");
  folder.write(
      name + "/lineage.jsonl",
      R"({"host":"</td><script>alert(1)</script>","device":"<b>","versions":{"<u>":"<s>"},"config_hash":"<h>"})"
      "\n");
  folder.write(name + "/summary.json",
               nlohmann::json({{"status", "failed"}, {"error", hostile}}).dump());
  RunReader reader(folder.path() / name);
  RunFiles& run = reader.read();
  std::string page = make_page({&run, 1});
  run.summary["status"] = "<blink>";
  page += make_page({&run, 1});
  CHECK(count_of(page, "<script") == 2);
  for (const char* tag : {"'\"<b>", "<i>", "<u>", "<s>", "<h>", "<blink>", "onerror=alert(2)>",
                          "http://", "https://"}) {
    INFO(tag);
    CHECK(count_of(page, tag) == 0);
  }
  CHECK(count_of(page, " style=") == 0);
  CHECK_THAT(page, ContainsSubstring("default-src 'none'; img-src data:; style-src 'nonce-"));
  const std::regex nonce("<script nonce=\"([0-9a-f]{32})\">");
  std::smatch first;
  REQUIRE(std::regex_search(page, first, nonce));
  CHECK_THAT(make_page({&run, 1}), !ContainsSubstring(first[1].str()));
}

TEST_CASE("a page on a running run refreshes itself, one on a finished run does not") {
  const TempFolder folder;
  write_pretended_run(folder, "run");
  RunReader reader(folder.path() / "run");
  RunFiles& run = reader.read();
  CHECK_THAT(make_page({&run, 1}), !ContainsSubstring("http-equiv=\"refresh\""));
  run.live = true;
  const std::string page = make_page({&run, 1});
  CHECK_THAT(page,
             ContainsSubstring("<noscript><meta http-equiv=\"refresh\" content=\"2\"></noscript>"));
  CHECK_THAT(page, ContainsSubstring("<body data-refresh=\"2\""));
  CHECK_THAT(page, ContainsSubstring("running: this page refreshes itself"));
}

TEST_CASE("a run that has not got anywhere has a page, too") {
  const TempFolder folder;
  folder.write("run/config.json", "{}");
  const std::string page = page_of(folder);
  CHECK_THAT(page, ContainsSubstring("Not known yet: the first epoch has not been evaluated."));
  CHECK_THAT(page, ContainsSubstring("Not known yet: the run has not been evaluated."));
  CHECK_THAT(page, !ContainsSubstring("nan"));
}

TEST_CASE("several runs are compared by results, curves and settings") {
  const TempFolder folder;
  write_pretended_run(folder, "runs/a");
  PretendedRun longer;
  longer.epochs = 5;
  write_pretended_run(folder, "runs/b", longer);
  settings::RunConfig config;
  config.train.learning_rate = 0.5;
  folder.write("runs/b/config.json", settings::write_run_config(config, false));
  const std::string page = page_on({folder.path() / "runs" / "a", folder.path() / "runs" / "b"});
  CHECK_THAT(page,
             ContainsSubstring("The best final test accuracy is 98.00 %, that of <b>runs/b</b>."));
  CHECK_THAT(page, ContainsSubstring("<code>learning_rate</code></th><td>0.01</td><td>0.5</td>"));
  CHECK_THAT(page, !ContainsSubstring("<code>batch_size</code>"));
  CHECK_THAT(page, ContainsSubstring("runs/b: from 90.00 % (epoch 1) to 98.00 % (epoch 5)."));
  CHECK_THAT(page, ContainsSubstring("How do they differ?"));
}

TEST_CASE("the page of a long run is small and quickly made") {
  const TempFolder folder;
  PretendedRun run;
  run.epochs = 50;
  run.steps = 469;  // log_interval 1
  run.predictions = 320;
  run.picture += std::string(600, 'A');
  write_pretended_run(folder, "run", run);
  RunReader reader(folder.path() / "run");
  reader.read();
  const double begin_s = monotonic_seconds();
  const std::string page = make_page({&reader.read(), 1});
  CHECK(monotonic_seconds() - begin_s < 1);
  CHECK(page.size() < 1'000'000);
}

TEST_CASE("pictures beyond two megabytes are omitted, their rows are not") {
  const TempFolder folder;
  PretendedRun run;
  run.predictions = 40;
  run.picture += std::string(100'000, 'A');
  write_pretended_run(folder, "run", run);
  const std::string page = page_of(folder);
  CHECK(page.size() < 4'200'000);
  CHECK(count_of(page, "<tr data-truth") == 40);
  CHECK(count_of(page, "omitted") > 0);
}

TEST_CASE("the head says what ended a run early and whose figures these are") {
  const TempFolder folder;
  write_pretended_run(folder, "run");
  folder.write("run/summary.json", R"({"status":"finished","ended_by":"epochs"})");
  const auto says = ContainsSubstring("moving average of the weights (ema, decay 0.99)");
  CHECK_THAT(page_of(folder), ContainsSubstring(">finished</span>") && !says);
  folder.write("run/summary.json", R"({"status":"finished","ended_by":"early_stopping"})");
  folder.write("run/config.json", R"({"ema":{"decay":0.99}})");
  CHECK_THAT(page_of(folder),
             ContainsSubstring(">finished: ended by early_stopping</span>") && says);
}

TEST_CASE("the last page of a failed run says why") {
  const TempFolder folder;
  write_pretended_run(folder, "run");
  folder.write("run/summary.json",
               R"({"status":"failed","error":"rank 1 was killed by signal 9"})");
  write_last_page(folder.path() / "run");
  const std::string page =
      read_file(folder.path() / "run" / "report.html", 1 << 22, ExitCode::kData);
  CHECK_THAT(
      page, ContainsSubstring("<p class=\"bad\" role=\"alert\">rank 1 was killed by signal 9</p>"));
  CHECK_THAT(page, ContainsSubstring("<span class=\"status failed\">failed</span>"));
  write_last_page(folder.path() / "nowhere");  // is ignored
}

}  // namespace
}  // namespace mnist_train::report
