#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace mnist_train::data {

struct LmdbHandles;

/// An LMDB that is read as it stands on opening. Never written to, not even its lock file, so it
/// may lie on a read-only file system; nobody may write to it meanwhile. Its pages are read without
/// LMDB's library, which trusts them: in a damaged file it would follow them out of memory.
class LmdbReader {
 public:
  /// Opens data.mdb in the folder `path`, or the file itself. Throws Error(kData) naming a file
  /// that is missing, of another version, shorter than it says, or locked by a program that opens
  /// it.
  explicit LmdbReader(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  std::int64_t entries() const { return entries_; }

  /// Returns the value of the first key, nothing where there are no entries. Lives as long as this
  /// object. Throws as `for_each` does.
  std::optional<std::span<const std::uint8_t>> first() const;

  /// Calls `visit` for every entry in the order of the keys. The views live as long as this object.
  /// Throws Error(kData) with the number of the page that is damaged.
  using Visit = std::function<void(std::string_view key, std::span<const std::uint8_t> value)>;
  void for_each(const Visit& visit) const;

 private:
  enum class PageKind : unsigned { kBranch = 1, kLeaf = 2, kValue = 4 };

  void read_meta();
  std::span<const std::uint8_t> page(std::uint64_t index, PageKind kind) const;
  /// A walk through the entries, of which it visits `most`.
  struct Walk {
    const Visit& visit;
    std::int64_t most;
    std::int64_t visited = 0;
  };
  void visit_page(std::uint64_t index, unsigned levels, Walk& walk) const;
  void visit_entry(std::uint64_t index, std::span<const std::uint8_t> node,
                   const Visit& visit) const;
  [[noreturn]] void fail(std::uint64_t page, const std::string& problem) const;

  std::string name_;
  MappedFile file_;
  std::size_t page_size_ = 0;
  unsigned levels_ = 0;     // of the tree of pages
  std::uint64_t root_ = 0;  // its top page
  std::int64_t entries_ = 0;
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
