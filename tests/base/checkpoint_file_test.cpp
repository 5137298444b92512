#include "base/file.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train {
namespace {

using namespace testing;
using Steps = std::vector<std::int64_t>;

TEST_CASE("a checkpoint's name contains its step with at least eight digits") {
  CHECK(checkpoint_name(938) == "step-00000938.safetensors");
  CHECK(checkpoint_name(1234567890) == "step-1234567890.safetensors");
}

TEST_CASE("saved steps are sorted numerically") {
  const TempFolder folder;
  for (const char* name : {"step-100000000.safetensors", "step-00000005.safetensors",
                           "step-99999999.safetensors", "step-5.safetensors", "step-00000007.pt",
                           "step-0000000x.safetensors", "best.safetensors"}) {
    folder.write(name, "");
  }
  CHECK(saved_steps(folder.path()) == Steps{5, 99999999, 100000000});
}

TEST_CASE("a folder that does not exist has no checkpoints, one that cannot be read is an error") {
  const TempFolder folder;
  CHECK(saved_steps(folder.path() / "absent").empty());
  const auto file = folder.write("checkpoints", "not a folder");
  CHECK_ERROR(saved_steps(file), ExitCode::kCheckpoint, file.string() + ": cannot be read");
}

std::string sealed(const std::string& content) {
  Hasher hasher;
  hasher.update(content.data(), content.size());
  const auto seal = hasher.digest();
  return content + std::string(seal.begin(), seal.end());
}

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

TEST_CASE("a seal detects every changed byte") {
  const std::string whole = sealed("weights");
  CHECK(matches_seal(bytes_of(whole)));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    CHECK_FALSE(matches_seal(bytes_of(damaged)));
    CHECK_FALSE(matches_seal(bytes_of(whole.substr(0, i))));
  }
}

TEST_CASE("the newest whole checkpoint is the last intact one, else the best one") {
  const TempFolder folder;
  CHECK_FALSE(newest_whole_checkpoint(folder.path()));
  folder.write("step-00000003.safetensors", "damaged, which is long enough for a seal");
  folder.write("step-00000002.safetensors", sealed("b"));
  folder.write("step-00000001.safetensors", sealed("a"));
  folder.write("best.safetensors", sealed("c"));
  CHECK(newest_whole_checkpoint(folder.path()) == folder.path() / "step-00000002.safetensors");
  folder.write("step-00000002.safetensors", "");
  folder.write("step-00000001.safetensors", "short");
  CHECK(newest_whole_checkpoint(folder.path()) == folder.path() / "best.safetensors");
}

TEST_CASE("the legacy format of torch.save is recognised with any pickle protocol") {
  const std::string number = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  CHECK(is_legacy_torch_file(bytes_of("\x80\x02" + number)));
  CHECK(is_legacy_torch_file(bytes_of(std::string("\x80\x04\x95\x0d\0\0\0\0\0\0\0", 11) + number)));
  CHECK(is_legacy_torch_file(bytes_of("L119547037146038801333356L\n.")));
  for (const char* other : {"", "PK\x03\x04", "\x80\x02}q\x01.", "1195470371460388013333"}) {
    CHECK_FALSE(is_legacy_torch_file(bytes_of(other)));
  }
}

}  // namespace
}  // namespace mnist_train
