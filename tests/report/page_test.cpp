#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/file.h"
#include "base/print.h"
#include "base/system.h"
#include "report/page/sections.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/run_folder.h"

namespace mnist_train::report {
namespace {

using namespace testing;

std::string page_of(const TempFolder& folder, const std::string& name = "run") {
  return render_report({folder.path() / name});
}

void check_contains(const std::string& page, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) CHECK_THAT(page, ContainsSubstring(text));
}

TEST_CASE("special characters, control bytes and invalid UTF-8 are escaped") {
  using Case = std::pair<std::string, std::string>;
  const auto [text, expected] = GENERATE(values<Case>({
      {"<b a='x' c=\"y\">&", "&lt;b a=&#39;x&#39; c=&quot;y&quot;&gt;&amp;"},
      {"grüße €😀", "grüße €😀"},
      {"tab\tand\nline", "tab\tand\nline"},
      {std::string("a\0b\x1b[0m\x7f", 8), "a\\x00b\\x1b[0m\\x7f"},
      {"\xff\xfe", "\\xff\\xfe"},  // base/print_test tests more invalid UTF-8
  }));
  CHECK(escape_html(text) == expected);
}

TEST_CASE("numbers are formatted for readers") {
  CHECK(percent(0.98765) == "98.77 %");
  CHECK(percent(std::nan("")) == "–");
  CHECK(duration(78.74) == "78.7 s");
  CHECK(duration(1265) == "21 min 5 s");
  CHECK(duration(11530) == "3 h 12 min");
  CHECK(count(1234567.4) == "1,234,567");
  CHECK(date_and_time(1800000000) == "2027-01-15 08:00:00 UTC");
}

TEST_CASE("a page answers the four questions") {
  const FakeRunFolder folder;
  const std::string page = page_of(folder);
  check_contains(
      page,
      {"Yes: test accuracy is 96.67 % after epoch 3, and was 90.00 % after epoch 1; predicting "
       "<b>1</b>, the largest class, for every image would reach 58.7 %.",
       "6 of 104 test images (5.77 %). Most often class <b>0</b> is predicted as class <b>1</b> "
       "(3×)",
       "14.5 s, 52 % of it for compute. The first step started 0.25 s after the command.",
       "Model <b>net</b>, sgd with learning rate 0.01, global batch 128, 10 epochs, seed 1."});
  check_contains(
      page,
      {"xxh3-128:c0ff", "xxh3-128:da7a", "libtorch 2.11.0", "2 processes, cpu, fp32",
       "1,000 training, 100 test images of 1×28×28, 2 classes", "Started once, without restarts."});
  CHECK_THAT(page,
             ContainsSubstring("averaging and waiting") && !ContainsSubstring("communication"));
  const auto config = folder.run / "config.json";
  CHECK_THAT(page,
             ContainsSubstring("<dt>To reproduce it</dt><dd><code>" +
                               escape_html("mnist-train --config " + shell_word(config.string()))));
}

TEST_CASE("settings that a resumed run changed are shown, also in a comparison") {
  const FakeRunFolder folder;
  CHECK_THAT(page_of(folder), !ContainsSubstring("see Started"));
  const RunFiles unchanged = read_run(folder.run);
  folder.write("run/lineage.jsonl",
               "{\"step\":0,\"changed\":null}\n"
               R"({"step":24,"changed":{"epochs":[3,4],"model.name":["net",null]}})"
               "\n");
  check_contains(page_of(folder), {">epochs 3 → 4, model.name net → null</td></tr>",
                                   "but its settings changed: see Started"});
  const std::array runs{unchanged, read_run(folder.run)};
  CHECK_THAT(make_page(runs),
             ContainsSubstring("step 24: epochs 3 → 4") && !ContainsSubstring("No recorded"));
}

TEST_CASE("the number of epochs includes those whose records are in another folder") {
  const FakeRunFolder folder;
  folder.write("run/metrics.jsonl", R"({"event":"epoch","epoch":3,"test_accuracy":0.5})"
                                    "\n");
  CHECK_THAT(page_of(folder), ContainsSubstring("<dt>Epochs</dt><dd>3 of 10</dd>"));
}

TEST_CASE("class names are shown if the data has them") {
  const FakeRunFolder folder;
  folder.write("run/lineage.jsonl",
               R"({"data":{"classes":2,"class_names":["T-shirt/top","<Bag>"]}})"
               "\n");
  const std::string page = page_of(folder);
  check_contains(
      page, {"Most often <b>T-shirt/top</b> is predicted as <b>&lt;Bag&gt;</b> (3×)",
             "title=\"T-shirt/top predicted as &lt;Bag&gt;: 3\"",
             "<span class=\"name\" title=\"&lt;Bag&gt;\">&lt;Bag&gt;</span></th>",
             "test image 9: T-shirt/top\"", "<b>T-shirt/top</b> → <b class=\"bad\">&lt;Bag&gt;</b>",
             "data-guess=\"1\" aria-label=\"T-shirt/top predicted as &lt;Bag&gt;: 3\""});
  CHECK_THAT(page, !ContainsSubstring("<Bag>"));
}

TEST_CASE("the class table shows metrics, the confusion matrix counts and percentages") {
  const FakeRunFolder folder;
  const std::string page = page_of(folder);
  check_contains(page, {"<span class=\"n\">40</span><span class=\"p\">93.0</span>",
                        "<td>93.0</td><td>93.0</td><td>93.0</td></tr>", "<a href=\"#kind-0-1\""});
  CHECK(occurrences(page, "id=\"kind-0-1\"") == 1);
  CHECK_THAT(page, !ContainsSubstring("#kind-1-0"));  // no image shows this kind of mistake
  std::vector<int> ids;
  const std::regex id("alt=\"test image ([0-9]+)");
  for (auto match = std::sregex_iterator(page.begin(), page.end(), id);
       match != std::sregex_iterator(); ++match) {
    ids.push_back(std::stoi((*match)[1]));
  }
  CHECK(ids == std::vector<int>{9, 5, 1});
}

TEST_CASE("a page loads no external resources and escapes all text from the run") {
  const TempFolder folder;
  const std::string hostile = "\"><script>alert(1)</script><img src=x onerror=alert(2)>";
  const std::string name = "x'\"<b>&amp;";
  write_fake_run(folder, name);
  folder.write(name + "/config.json",
               R"({"model":{"name":"\"><script>alert(1)</script>"},"seed":"<i>"})");
  folder.write(
      name + "/lineage.jsonl",
      R"({"host":"</td><script>alert(1)</script>","device":"<b>","versions":{"<u>":"<s>"},"config_hash":"<h>"})"
      "\n");
  folder.write(name + "/summary.json",
               nlohmann::json({{"status", "failed"}, {"error", hostile}}).dump());
  RunFiles run = read_run(folder.path() / name);
  std::string page = make_page({&run, 1});
  run.summary["status"] = "<blink>";
  page += make_page({&run, 1});
  CHECK(occurrences(page, "<script") == 2);
  for (const char* tag : {"'\"<b>", "<i>", "<u>", "<s>", "<h>", "<blink>", "onerror=alert(2)>",
                          "http://", "https://"}) {
    INFO(tag);
    CHECK(occurrences(page, tag) == 0);
  }
  CHECK(occurrences(page, " style=") == 0);
  CHECK_THAT(page, ContainsSubstring("default-src 'none'; img-src data:; style-src 'nonce-"));
  const std::regex nonce("<script nonce=\"([0-9a-f]{32})\">");
  std::smatch first;
  REQUIRE(std::regex_search(page, first, nonce));
  CHECK_THAT(make_page({&run, 1}), !ContainsSubstring(first[1].str()));
}

TEST_CASE("only the page of a live run refreshes itself") {
  const FakeRunFolder folder;
  RunFiles run = read_run(folder.run);
  CHECK_THAT(make_page({&run, 1}), !ContainsSubstring("http-equiv=\"refresh\""));
  run.live = true;
  const std::string page = make_page({&run, 1});
  check_contains(page, {"<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>",
                        "<body data-refresh=\"5\"", "running: this page refreshes itself"});
}

TEST_CASE("a run without results gets a page") {
  const TempFolder folder;
  folder.write("run/config.json", "{}");
  const std::string page = page_of(folder);
  check_contains(page, {"Not known: the run ended before its first epoch was evaluated.",
                        "Not known: the run ended before it was evaluated."});
  CHECK_THAT(page, !ContainsSubstring("nan"));
  RunFiles run = read_run(folder.path() / "run");
  run.live = true;
  const std::string live = make_page({&run, 1});
  check_contains(live, {"Not known yet: the first epoch has not been evaluated.",
                        "Not known yet: the run has not been evaluated."});
}

TEST_CASE("there is a verdict for runs that failed, had one epoch, or learned nothing") {
  const TempFolder folder;
  write_fake_run(folder, "failed", {.status = "failed"});
  CHECK_THAT(page_of(folder, "failed"),
             ContainsSubstring(
                 "Yes: test accuracy was 96.67 % after epoch 3, and was 90.00 % after epoch 1"));
  write_fake_run(folder, "at once", {.epochs = 0, .status = "failed"});
  folder.write("at once/metrics.jsonl", R"({"event":"step","step":1,"loss":2.5})"
                                        "\n"
                                        R"({"event":"step","step":2,"loss":1.5})"
                                        "\n");
  const std::string at_once = page_of(folder, "at once");
  check_contains(at_once, {"Not known: the run failed before its first epoch was evaluated. The "
                           "training loss was 2.5 at step 1 and 1.5 at step 2.",
                           "The run ended after 14.5 s, before its first epoch was finished.",
                           "never evaluated"});
  write_fake_run(folder, "one", {.epochs = 1});
  const std::string one = page_of(folder, "one");
  check_contains(one, {"Yes: test accuracy is 90.00 % after epoch 1; predicting",
                       "<details id=\"epochs\" open>"});
  CHECK_THAT(one, !ContainsSubstring("Accuracy by epoch") && !ContainsSubstring("<dt>Best</dt>"));
  folder.write("one/metrics.jsonl",
               R"({"event":"epoch","epoch":1,"test_accuracy":0.5,"confusion":[[0,50],[0,50]]})"
               "\n");
  const std::string nothing = page_of(folder, "one");
  check_contains(nothing, {"No: test accuracy is 50.00 % after epoch 1",
                           "1 of 2 classes is never predicted: <b>0</b>"});
}

TEST_CASE("24 wrong predictions are shown at first, and more on demand, up to a limit") {
  const FakeRunFolder folder;
  std::string lines;
  for (int id = 0; id < 300; ++id) {
    lines += R"({"id":)" + std::to_string(id) + R"(,"guess":1,"truth":0,"confidence":0.5})" + "\n";
  }
  folder.write("run/mistakes.jsonl", lines);
  const std::string page = page_of(folder);
  const std::size_t more = page.find("<details id=\"more-wrong\"><summary>216 more</summary>");
  REQUIRE(more != std::string::npos);
  CHECK(occurrences(page.substr(0, more), "<li data-truth") == 24);
  CHECK(occurrences(page, "<li data-truth") == kMaxMistakes);
}

TEST_CASE("a comparison shows results, curves and settings") {
  const TempFolder folder;
  write_fake_run(folder, "runs/a");
  write_fake_run(folder, "runs/b", {.epochs = 5});
  settings::RunConfig config;
  config.train.learning_rate = 0.5;
  folder.write("runs/b/config.json", settings::write_run_config(config, false));
  const std::string page =
      render_report({folder.path() / "runs" / "a", folder.path() / "runs" / "b"});
  check_contains(page, {"The best final test accuracy is 98.00 %, reached by <b>runs/b</b>.",
                        "<code>learning_rate</code></th><td>0.01</td><td>0.5</td>"});
  CHECK_THAT(page, !ContainsSubstring("<code>batch_size</code>"));
  check_contains(page,
                 {"runs/b <b>98.00 %</b>", "How do they differ?",
                  "It is 1.33 points above the next. With 104 test images, a difference this small "
                  "may be due to chance.",
                  "<td data-label=\"test accuracy\"><span class=\"best\">★ 98.00 %</span></td>",
                  "<td data-label=\"test loss\"><span class=\"best\">★ 0.2</span></td>",
                  "<td data-label=\"samples/s\">17,000</td>"});
  const std::string alike =
      render_report({folder.path() / "runs" / "a", folder.path() / "runs" / "a"});
  CHECK(occurrences(alike, "class=\"best\"") == 0);
}

/// Returns the record of an epoch with additional members.
std::string epoch_line(int epoch, nlohmann::json members) {
  members.update({{"event", "epoch"}, {"epoch", epoch}});
  return members.dump() + "\n";
}

/// Returns a record that predicts the `sizes[label]` images of each class as `guess(label)`.
template <typename Guess>
std::string epoch_with(const std::vector<int>& sizes, const Guess& guess, double balanced) {
  const std::size_t classes = sizes.size();
  std::vector<std::vector<int>> confusion(classes, std::vector<int>(classes));
  int all = 0;
  int right = 0;
  for (std::size_t label = 0; label < classes; ++label) {
    const std::size_t predicted = guess(label);
    confusion[label][predicted] = sizes[label];
    all += sizes[label];
    if (predicted == label) right += sizes[label];
  }
  return epoch_line(1, {{"test_accuracy", static_cast<double>(right) / all},
                        {"test_balanced_accuracy", balanced},
                        {"test_top5_accuracy", 0.875},
                        {"confusion", confusion}});
}

TEST_CASE("the verdict is Yes only if a model beats the majority class and predicts all classes") {
  struct Case {
    std::vector<int> sizes;
    std::size_t last_predicted;  // higher classes are predicted as class 0
    double balanced;
    std::string verdict;
  };
  const auto [sizes, last_predicted, balanced, verdict] = GENERATE(values<Case>({
      {{90, 10}, 0, 0.5, "No: test accuracy is 90.00 %"},
      {{90, 10}, 1, 1, "Yes: test accuracy is 100.00 %"},
      {{50, 50, 40, 30, 20, 10}, 3, 0.667, "Partly: test accuracy is 85.00 %"},
      {{40, 0}, 0, 1, "Not known: test accuracy is 100.00 %"},
  }));
  const FakeRunFolder folder;
  const auto guess = [last = last_predicted](std::size_t label) {
    return label <= last ? label : std::size_t{0};
  };
  folder.write("run/metrics.jsonl", epoch_with(sizes, guess, balanced));
  CHECK_THAT(page_of(folder), ContainsSubstring(verdict));
}

TEST_CASE("the page lists classes that are never predicted, with a remedy") {
  const FakeRunFolder folder;
  const auto guess = [](std::size_t label) { return label < 4 ? label : std::size_t{0}; };
  folder.write("run/metrics.jsonl", epoch_with({50, 50, 40, 30, 20, 10}, guess, 0.667));
  folder.write("run/dataset.json", R"({"classes":[{"train":500},{"train":10}]})");
  check_contains(page_of(folder),
                 {"2 of 6 classes are never predicted: <b>4</b>, <b>5</b></span>; class_weights "
                  "&quot;balanced&quot; gives all classes equal weight.",
                  "5<span class=\"bad never\">never predicted</span>",
                  "<td class=\"missed\" title=\"5 predicted as 5: 0\"><span class=\"n\">0</span>",
                  "<dt>Balanced accuracy</dt><dd>66.70 %</dd>"});
  folder.write("run/config.json", R"({"class_weights":"balanced"})");
  CHECK_THAT(page_of(folder), !ContainsSubstring("gives all classes equal weight"));
}

TEST_CASE("with many classes, the worst 50 are listed, and the page stays small") {
  const std::size_t classes = GENERATE(51, 200, 1000);
  const FakeRunFolder folder;
  const auto guess = [=](std::size_t label) {
    return label + 1 < classes ? label : std::size_t{3};
  };
  folder.write("run/metrics.jsonl", epoch_with(std::vector<int>(classes, 2), guess, 0.9));
  const std::string page = page_of(folder);
  check_contains(page, {"The worst 50 of " + count(static_cast<double>(classes)) + " classes by F1",
                        "<dt>Top-5 accuracy</dt><dd>87.50 %</dd>", "Most confused"});
  const std::string table = page.substr(page.find("The worst 50"));
  const std::string rows = table.substr(0, table.find("</table>"));
  CHECK(occurrences(rows, "<tr><th scope=\"row\">") == 50);
  CHECK(rows.find(">" + std::to_string(classes - 1) + "<") < rows.find(">3<"));
  CHECK(page.size() < 300'000);
}

TEST_CASE("class_counts replace the confusion matrix if there are too many classes") {
  const FakeRunFolder folder;
  std::vector<int> samples(1500, 4);
  std::vector<int> predicted = samples;
  predicted[7] = 0;
  std::vector<int> correct(1500, 3);
  correct[7] = 0;
  folder.write(
      "run/metrics.jsonl",
      epoch_line(1, {{"test_accuracy", 0.7495},
                     {"class_counts",
                      {{"samples", samples}, {"predicted", predicted}, {"correct", correct}}}}));
  check_contains(page_of(folder), {"1 of 1,500 classes is never predicted: <b>7</b>",
                                   "The worst 50 of 1,500 classes by F1"});
}

TEST_CASE("the page shows the class sizes and skipped files of dataset.json") {
  const FakeRunFolder folder;
  folder.write("run/dataset.json", R"({"classes":[{"name":"a","train":7,"validation":0,"test":44},
      {"name":"b","train":1234,"validation":0,"test":60}],
      "left_out":{".tif":1200,"<i>":1,"folders":{"__MACOSX":"by <b>"}}})");
  const std::string page = page_of(folder);
  check_contains(page, {"<dt>Classes</dt><dd>2 of 7 (0) to 1,234 (1) training images</dd>",
                        "<th scope=\"col\">train</th><th scope=\"col\">test</th>",
                        "<th scope=\"row\">1</th><td>1,234</td><td>61</td>",
                        "<th scope=\"row\">.tif</th><td>1,200</td>",
                        "<th scope=\"row\">&lt;i&gt;</th><td>1</td>",
                        "<th scope=\"row\">folders › __MACOSX</th><td>by &lt;b&gt;</td>"});
  CHECK_THAT(page, !ContainsSubstring("valid."));
}

TEST_CASE("wrong predictions show their file names") {
  const FakeRunFolder folder;
  folder.write("run/mistakes.jsonl",
               R"({"id":3,"guess":1,"truth":0,"confidence":0.5,"file":"cat/<i> 1.png"})"
               "\n");
  check_contains(page_of(folder),
                 {"<span class=\"soft file\" title=\"cat/&lt;i&gt; 1.png\">&lt;i&gt; 1.png</span>",
                  "then its file"});
  write_fake_run(folder, "other");
  CHECK_THAT(page_of(folder, "other"), !ContainsSubstring("then its file"));
}

TEST_CASE("runs with different test files are not ranked") {
  const TempFolder folder;
  write_fake_run(folder, "a");
  write_fake_run(folder, "b", {.epochs = 4});
  const std::string epoch = R"({"event":"epoch","epoch":1,"confusion":[[40,2],[2,58]],)";
  folder.write("a/metrics.jsonl", epoch + "\"test_accuracy\":0.96}\n");
  folder.write("b/metrics.jsonl", epoch + "\"test_accuracy\":0.86}\n");
  const auto page = [&] { return render_report({folder.path() / "a", folder.path() / "b"}); };
  const auto refuses = ContainsSubstring("The runs were tested on different images");
  const auto ranks = ContainsSubstring("★ 96.00 %");
  CHECK_THAT(page(), ranks && !refuses);
  folder.write("a/dataset.json", R"({"test":["x/1.png"]})");
  folder.write("b/dataset.json", R"({"test":["x/1.png"]})");
  CHECK_THAT(page(), ranks && !refuses);
  folder.write("b/dataset.json", R"({"test":["x/2.png"]})");
  CHECK_THAT(page(), refuses && !ranks);
}

TEST_CASE("the page of a long run is small and is created within a second") {
  const std::string picture = FakeRun().picture + std::string(600, 'A');
  const FakeRunFolder folder(  // log_interval 1
      {.epochs = 50, .steps = 469, .predictions = 320, .picture = picture});
  const RunFiles files = read_run(folder.run);
  const double begin_s = monotonic_seconds();
  const std::string page = make_page({&files, 1});
  CHECK(monotonic_seconds() - begin_s < 1);
  CHECK(page.size() < 1'000'000);
}

TEST_CASE("the size of the page is bounded, even for thousands of epochs") {
  const FakeRunFolder folder({.epochs = 5000, .steps = 1});
  std::string lineage;
  for (int i = 0; i < 500; ++i) lineage += "{\"step\":" + std::to_string(i) + "}\n";
  folder.write("run/lineage.jsonl", lineage);
  const std::string page = page_of(folder);
  CHECK(page.size() < 600'000);
  const std::string rows = page.substr(page.find("<details id=\"epochs\""));
  CHECK(occurrences(rows.substr(0, rows.find("</details>")), "<tr>") <= 203);
  CHECK_THAT(rows, ContainsSubstring("Metrics of 201 of 5,000 epochs; metrics.jsonl has all"));
  check_contains(rows, {"</span> 1</th>", "</span> 5000</th>"});
  CHECK_THAT(
      page, ContainsSubstring("500 times, including resumes and restarts after a lost process. The "
                              "last 100:"));
  CHECK_THAT(page, ContainsSubstring(">499</td>") && !ContainsSubstring(">399</td>"));
}

TEST_CASE("the header shows why a run ended early, and whether the EMA model was evaluated") {
  const FakeRunFolder folder;
  folder.write("run/summary.json", R"({"status":"finished","ended_by":"epochs"})");
  const auto says = ContainsSubstring("The EMA model (decay 0.99) is evaluated");
  CHECK_THAT(page_of(folder), ContainsSubstring(">finished</span>") && !says);
  folder.write("run/summary.json", R"({"status":"finished","ended_by":"early_stopping"})");
  folder.write("run/config.json", R"({"ema":{"decay":0.99}})");
  CHECK_THAT(page_of(folder), ContainsSubstring(">finished early: early_stopping</span>") && says);
  folder.write("run/config.json", R"({"batch_size":null,"batch_size_per_process":32})");
  CHECK_THAT(page_of(folder), ContainsSubstring(", batch per process 32, "));
}

/// Returns an epoch's record with its accuracies.
std::string accuracy_line(int epoch, double validation, double test) {
  return epoch_line(epoch, {{"validation_accuracy", validation}, {"test_accuracy", test}});
}

TEST_CASE("the best epoch is that of the best checkpoint, not of the best test accuracy") {
  const FakeRunFolder folder({.status = "running"});  // the run died before it finished
  folder.write("run/metrics.jsonl", accuracy_line(1, 0.9, 0.89) + accuracy_line(2, 0.97, 0.95) +
                                        accuracy_line(3, 0.96, 0.99));
  const auto best = [](const std::string& accuracy, int epoch) {
    return ContainsSubstring("<dt>Best</dt><dd>" + accuracy + "</dd><dd class=\"soft\">epoch " +
                             std::to_string(epoch) + ", by validation accuracy</dd>");
  };
  CHECK_THAT(page_of(folder), best("95.00 %", 2));
  CHECK_THAT(render_report({folder.run, folder.run}),
             ContainsSubstring("<td data-label=\"best epoch\">95.00 %</td>"));
  // If a run was resumed in another folder, its best epoch may be only in the summary.
  folder.write("run/metrics.jsonl", accuracy_line(3, 0.96, 0.99) + accuracy_line(4, 0.96, 0.98));
  folder.write("run/summary.json",
               R"({"status":"finished","best_epoch":2,"best_test_accuracy":0.95})");
  CHECK_THAT(page_of(folder), best("95.00 %", 2));
}

TEST_CASE("the last page of a failed run shows the reason") {
  const FakeRunFolder folder;
  folder.write("run/summary.json",
               R"({"status":"failed","error":"rank 1 was killed by signal 9"})");
  write_last_page(folder.run);
  const std::string page = read_file(folder.run / "report.html", 1 << 22, ExitCode::kData);
  check_contains(page, {"<p class=\"bad\" role=\"alert\">rank 1 was killed by signal 9</p>",
                        "<span class=\"status failed\">failed</span>"});
  write_last_page(folder.path() / "nowhere");  // no folder, no page
}

TEST_CASE("recall, precision and F1 are computed from the confusion matrix") {
  const ClassCounts confusion = count_by_class({8, 2, 0,  // rows are the true classes
                                                4, 6, 0,  //
                                                0, 0, 0},
                                               3);
  CHECK(confusion.total() == 20);
  CHECK(confusion.total_correct() == 14);
  CHECK(confusion.of(1).samples == 10);
  CHECK(confusion.of(0).predicted == 12);
  CHECK(confusion.of(0).recall() == Approx(0.8));
  CHECK(confusion.of(0).precision() == Approx(8.0 / 12));
  CHECK(confusion.of(0).f1() == Approx(2 * 0.8 * (8.0 / 12) / (0.8 + 8.0 / 12)));
  CHECK(std::isnan(confusion.of(2).recall()));
  CHECK(std::isnan(confusion.of(2).precision()));
  CHECK(std::isnan(confusion.of(2).f1()));
  const std::vector<ConfusedPair> pairs = most_confused(confusion, 5);
  REQUIRE(pairs.size() == 2);
  CHECK(pairs[0].truth == 1);
  CHECK(pairs[0].predicted == 0);
  CHECK(pairs[0].images == 4);
  CHECK(most_confused(confusion, 1).size() == 1);
}

}  // namespace
}  // namespace mnist_train::report
