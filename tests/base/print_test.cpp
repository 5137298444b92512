#include "base/print.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

#include "base/file.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/scoped_environment.h"
#include "support/scoped_logging.h"
#include "support/temp_folder.h"

namespace mnist_train {
namespace {

namespace fs = std::filesystem;
using namespace testing;

TEST_CASE("commands show paths inside the working directory as relative") {
  const auto here = std::filesystem::current_path();
  CHECK(path_as_typed(here / "runs" / "model.pt") == "runs/model.pt");
  CHECK(path_as_typed("/elsewhere/model.pt") == "/elsewhere/model.pt");
}

TEST_CASE("a program outside PATH is shown with its path") {
  const testing::ScopedEnvironment nowhere("PATH", "/nowhere");
  const std::filesystem::path typed = program_as_typed();
  CHECK(typed.filename() == "mnist-train");  // although the test program has a different name
  CHECK(typed.has_parent_path());
}

TEST_CASE("words are quoted only if a shell requires it") {
  CHECK(shell_word("runs/a-b.json") == "runs/a-b.json");
  CHECK(shell_word("a b") == "'a b'");
  CHECK(shell_word("it's") == "'it'\\''s'");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("a\nb") == "'a'$'\\n''b'");  // on one line, for messages
}

/// A file that replaces the console.
struct Console {
  TempFolder folder;
  fs::path path = folder.path() / "console";
  UniqueFd fd{::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};

  std::string text() const { return read_file(path, 1 << 20, ExitCode::kData); }
  LogSetup setup(const std::string& level = "info") const {
    LogSetup setup;
    setup.level = level;
    setup.console_fd = fd.get();
    return setup;
  }
};

TEST_CASE("the console shows messages at or above its level, without timestamps") {
  for (const auto& [level, shown] : {std::pair{"trace", "t\nd\ni\nw\ne\n"},
                                     {"debug", "d\ni\nw\ne\n"},
                                     {"info", "i\nw\ne\n"},
                                     {"warning", "w\ne\n"},
                                     {"error", "e\n"}}) {
    const Console console;
    const ScopedLogging logging(console.setup(level));
    spdlog::trace("t");
    spdlog::debug("d");
    spdlog::info("i");
    spdlog::warn("w");
    spdlog::error("e");
    INFO(level);
    CHECK(console.text() == shown);
  }
}

TEST_CASE("each console line starts with the prefix") {
  const Console console;
  LogSetup setup = console.setup();
  setup.console_prefix = "rank 1: ";
  const ScopedLogging logging(setup);
  spdlog::info("one {}", 2);
  CHECK(console.text() == "rank 1: one 2\n");
}

TEST_CASE("messages from level debug up are appended to the log file, with time and level") {
  const Console console;
  LogSetup setup = console.setup("error");
  setup.file = console.folder.path() / "logs" / "rank-0.log";
  for (const char* message : {"first", "second"}) {
    const ScopedLogging logging(setup);
    spdlog::trace("hidden");
    spdlog::debug("{}", message);
  }
  CHECK(console.text().empty());
  std::istringstream lines(read_file(*setup.file, 1 << 20, ExitCode::kData));
  std::string time;
  std::string level;
  std::string message;
  for (const char* expected : {"first", "second"}) {
    REQUIRE(lines >> time >> level >> message);
    CHECK(time.size() > 20);
    CHECK(level == "debug");
    CHECK(message == expected);
  }
  CHECK_FALSE(lines >> time);
}

TEST_CASE("control bytes in messages cannot control a terminal") {
  const Console console;
  const ScopedLogging logging(console.setup());
  spdlog::info("{}", std::string("\x1b[31mred\r\x07\0\x7f tab\t", 17));
  CHECK(console.text() == "\\x1b[31mred\\x0d\\x07\\x00\\x7f tab\t\n");
}

TEST_CASE("a newline in a message cannot forge a line") {
  const Console console;
  const ScopedLogging logging(console.setup());
  spdlog::info("{}", "name\nmnist-train failed: forged");
  CHECK(console.text() == "name\\x0amnist-train failed: forged\n");
  CHECK(as_block("list:\nforged\x1b[0m\n  one") == "list:\n  forged\\x1b[0m\n    one");
}

TEST_CASE("escaping leaves text, tabs, newlines and UTF-8 alone") {
  CHECK(escape_control_bytes("a\tb\nc é … 手") == "a\tb\nc é … 手");
  CHECK(escape_control_bytes("").empty());
  std::string all;
  for (int byte = 0; byte < 32; ++byte) all += static_cast<char>(byte);
  const std::string escaped = escape_control_bytes(all);
  CHECK(escaped.size() == 30 * 4 + 2);
}

TEST_CASE("control, bidirectional and invisible characters and invalid UTF-8 are escaped") {
  using Case = std::pair<std::string, std::string>;
  for (const auto& [text, escaped] : {
           Case{"\x9b"
                "31m",
                "\\x9b31m"},  // the C1 control character CSI as one byte
           Case{"\xc2\x9b"
                "31m",
                "\\u009b31m"},  // CSI in UTF-8
           Case{"a\u202egpj.exe\u2066", "a\\u202egpj.exe\\u2066"},
           Case{"\u200b\ufeff\u2028", "\\u200b\\ufeff\\u2028"},
           Case{"\xff\xfe", "\\xff\\xfe"},
           Case{"\xc3", "\\xc3"},                                      // truncated
           Case{"\xc0\x80\xed\xa0\x80", "\\xc0\\x80\\xed\\xa0\\x80"},  // overlong; a surrogate
           Case{"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},           // beyond Unicode
           Case{"می\u200cخواهم 👩\u200d🔬 ÿ", "می\u200cخواهم 👩\u200d🔬 ÿ"},
       }) {
    CHECK(escape_control_bytes(text) == escaped);
    CHECK(on_one_line(text) == escaped);
    CHECK(as_block(text) == escaped);
  }
}

TEST_CASE("very long lines in a block are truncated") {
  const std::string block = as_block("one\n" + std::string(30'000, '\xff') + "\ntwo\n");
  CHECK(block.size() < 40'000);
  CHECK_THAT(block, StartsWith("one\n  \\xff"));
  CHECK_THAT(block, EndsWith("… (21808 bytes omitted)\n  two\n  "));
}

TEST_CASE("the error names a log file that cannot be opened or whose folder cannot be created") {
  const TempFolder folder;
  const fs::path target = folder.write("target", "");
  fs::create_symlink(target, folder.path() / "link");
  for (const fs::path& path :
       {folder.path(), folder.path() / "link", folder.path() / "target/rank-0.log"}) {
    LogSetup setup;
    setup.console_fd = -1;
    setup.file = path;
    CHECK_ERROR(ScopedLogging(setup), ExitCode::kRunFailed, path.string());
  }
}

TEST_CASE("a closed pipe does not end the process") {
  // A child process ignores SIGPIPE, as workers do.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGPIPE, SIG_IGN);
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) ::_exit(2);
    ::close(pipe[0]);
    LogSetup setup;
    setup.console_fd = pipe[1];
    set_up_logging(setup);
    spdlog::info("nobody listens");
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("globs match like Python's fnmatch.fnmatchcase") {
  using Case = std::tuple<const char*, const char*, bool>;  // expected results are Python 3.11's
  const std::vector<Case> cases{
      {"*", "a.b.c", true},
      {"*", "", true},
      {"", "", true},
      {"", "a", false},
      {"fc.*", "fc.weight", true},
      {"fc.*", "fc", false},
      {"layer?.*", "layer4.0.conv1.weight", true},
      {"layer?.*", "layer.0", false},
      {"layer[!34].*", "layer3.0.weight", false},
      {"layer[!34].*", "layer1.0.weight", true},
      {"[a-c]x", "bx", true},
      {"[a-c]x", "dx", false},
      {"[]]", "]", true},
      {"[!]]", "a", true},
      {"[!]]", "]", false},
      {"[abc", "[abc", true},
      {"[-a]", "-", true},
      {"[a-]", "-", true},
      {"a*b*c", "aXbXbc", true},
      {"a*b*c", "aXbXb", false},
      {"FC.*", "fc.weight", false},
      {R"(a\*)", R"(a\x)", true},
      {"[z-a]", "m", false},
  };
  for (const auto& [pattern, name, matches] : cases) {
    CAPTURE(pattern, name);
    CHECK(matches_glob(pattern, name) == matches);
  }
}

TEST_CASE("a glob with many stars does not take exponential time") {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  CHECK_FALSE(matches_glob(pattern + "b", std::string(5000, 'a')));
}

TEST_CASE("a long list of names is cut short and ends with the number of omitted names") {
  const std::vector<std::string> names{"a", "b", "c"};
  CHECK(first_names(names, 3) == "a, b, c");
  CHECK(first_names(names, 1) == "a and 2 more");
  CHECK(first_names({}, 1).empty());
}

TEST_CASE("an error about a glob without a match suggests similar names and modules") {
  const std::vector<std::string> names{"conv1.weight",      "layer1.0.conv1.weight",
                                       "layer1.0.bn1.bias", "layer2.0.conv1.weight",
                                       "head.weight",       "head.bias"};
  const auto about = [&](const char* pattern) { return unmatched_glob(pattern, names); };
  CHECK(about("haed.*") == R"("haed.*" matches no parameter; did you mean "head.*"?)");
  CHECK(about("layer3.*") ==
        R"("layer3.*" matches no parameter; did you mean "layer1.*" or "layer2.*"?)");
  CHECK(about("layer1.0.bn1.bais") ==
        R"("layer1.0.bn1.bais" matches no parameter; did you mean "layer1.0.bn1.bias"?)");
  CHECK(
      about("classifier.*") ==
      "\"classifier.*\" matches no parameter; the network has conv1.*, layer1.*, layer2.*, head.*");
}

TEST_CASE("swapping two adjacent characters is one edit") {
  const auto [left, right, distance] =
      GENERATE(table<const char*, const char*, std::size_t>({{"", "", 0},
                                                             {"", "abc", 3},
                                                             {"abc", "", 3},
                                                             {"abc", "abc", 0},
                                                             {"abc", "acb", 1},
                                                             {"abc", "abd", 1},
                                                             {"abc", "ab", 1},
                                                             {"ab", "xaby", 2},
                                                             {"abcd", "badc", 2},
                                                             {"kitten", "sitting", 3}}));
  CAPTURE(left, right);
  CHECK(edit_distance(left, right) == distance);
}

}  // namespace
}  // namespace mnist_train
