#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mnist_train::data {

struct LmdbHandles;

/// An LMDB that is read as it stands on opening. Never written to, not even its lock file, so it
/// may lie on a read-only file system; nobody may write to it meanwhile.
class LmdbReader {
 public:
  /// Opens data.mdb in the folder `path`, or the file itself. Throws Error(kData) naming a file
  /// that is missing, of another version, shorter than it says, or locked by a program that opens
  /// it.
  explicit LmdbReader(const std::filesystem::path& path);
  ~LmdbReader();
  LmdbReader(const LmdbReader&) = delete;
  LmdbReader& operator=(const LmdbReader&) = delete;

  const std::string& name() const { return name_; }
  std::int64_t entries() const { return entries_; }

  /// Calls `visit` for every entry in the order of the keys. The views live as long as this object.
  using Visit = std::function<void(std::string_view key, std::span<const std::uint8_t> value)>;
  void for_each(const Visit& visit) const;

 private:
  void check_length(const std::filesystem::path& file) const;

  std::string name_;
  std::int64_t entries_ = 0;
  std::unique_ptr<LmdbHandles> handles_;
};

/// Makes an LMDB of one unnamed table in a folder of its own. Entries come in the order of their
/// keys. Throws Error(kRunFailed).
class LmdbWriter {
 public:
  explicit LmdbWriter(const std::filesystem::path& folder);
  ~LmdbWriter();
  LmdbWriter(const LmdbWriter&) = delete;
  LmdbWriter& operator=(const LmdbWriter&) = delete;

  void append(std::string_view key, std::string_view value);
  /// Commits and syncs what was appended; without it the database is not to be used.
  void finish();

 private:
  void begin();
  void commit();
  void require(int result, const char* action) const;

  std::string name_;
  std::unique_ptr<LmdbHandles> handles_;
  std::int64_t uncommitted_ = 0;
};

}  // namespace mnist_train::data
