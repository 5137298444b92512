#include "app/preview_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace mnist_train::app {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kGap = 3;  // pixels between images, and around all
constexpr std::int64_t kGlyphHeight = 5;
constexpr std::int64_t kGlyphWidth = 3;
constexpr std::int64_t kCaption = kGlyphHeight + 2;
constexpr std::uint8_t kPaper = 255;
constexpr std::uint8_t kInk = 0;

/// The glyphs of 0 to 9 and "+": rows of three pixels.
constexpr std::array<std::array<unsigned, kGlyphHeight>, 11> kGlyphs{{{7, 5, 5, 5, 7},
                                                                      {2, 6, 2, 2, 7},
                                                                      {7, 1, 7, 4, 7},
                                                                      {7, 1, 7, 1, 7},
                                                                      {5, 5, 7, 1, 1},
                                                                      {7, 4, 7, 1, 7},
                                                                      {7, 4, 7, 5, 7},
                                                                      {7, 1, 1, 1, 1},
                                                                      {7, 5, 7, 5, 7},
                                                                      {7, 5, 7, 1, 7},
                                                                      {0, 2, 7, 2, 0}}};

std::int64_t columns_of(const RankPreview& preview) {
  const auto count = static_cast<double>(preview.facts.size());
  return std::max<std::int64_t>(1, std::llround(std::ceil(std::sqrt(count))));
}

std::int64_t rows_of(const RankPreview& preview) {
  const auto count = static_cast<std::int64_t>(preview.facts.size());
  return (count + columns_of(preview) - 1) / columns_of(preview);
}

class Canvas {
 public:
  explicit Canvas(imaging::Image& picture) : picture_(picture) {}

  void write(const std::string& text, std::int64_t top, std::int64_t left, std::int64_t width) {
    std::int64_t at = 0;
    for (const char letter : text) {
      if (at + kGlyphWidth > width) return;
      glyph(kGlyphs[letter == '+' ? 10U : static_cast<unsigned>(letter - '0')], top, left + at);
      at += kGlyphWidth + 1;
    }
  }

  void paste(const RankPreview& preview, std::int64_t index, std::int64_t top, std::int64_t left) {
    const std::int64_t pixels = preview.height * preview.width;
    for (std::int64_t channel = 0; channel < picture_.channels; ++channel) {
      const std::int64_t plane = index * preview.channels + (preview.channels == 3 ? channel : 0);
      const char* in = preview.planes.data() + plane * pixels;
      for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
        at(top + pixel / preview.width, left + pixel % preview.width, channel) =
            static_cast<std::uint8_t>(in[pixel]);
      }
    }
  }

 private:
  void glyph(const std::array<unsigned, kGlyphHeight>& rows, std::int64_t top, std::int64_t left) {
    for (std::int64_t y = 0; y < kGlyphHeight; ++y) {
      for (std::int64_t x = 0; x < kGlyphWidth; ++x) {
        const unsigned row = rows[static_cast<std::size_t>(y)];
        if ((row >> static_cast<unsigned>(kGlyphWidth - 1 - x) & 1U) == 0) continue;
        for (std::int64_t channel = 0; channel < picture_.channels; ++channel) {
          at(top + y, left + x, channel) = kInk;
        }
      }
    }
  }

  std::uint8_t& at(std::int64_t y, std::int64_t x, std::int64_t channel) {
    return picture_
        .pixels[static_cast<std::size_t>((y * picture_.width + x) * picture_.channels + channel)];
  }

  imaging::Image& picture_;
};

/// Draws the rank's number, then its images; returns where the next grid begins.
std::int64_t draw_grid(Canvas& canvas, const RankPreview& preview, std::size_t rank,
                       std::int64_t top, std::int64_t width, ordered_json& grid) {
  canvas.write(std::to_string(rank), top, kGap, width - 2 * kGap);
  top += kCaption;
  const std::int64_t columns = columns_of(preview);
  grid = {{"rank", rank}, {"images", ordered_json::array()}};
  for (std::size_t i = 0; i < preview.facts.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const std::int64_t y = top + index / columns * (preview.height + kCaption + kGap);
    const std::int64_t x = kGap + index % columns * (preview.width + kGap);
    canvas.paste(preview, index, y, x);
    canvas.write(preview.captions[i], y + preview.height + 1, x, preview.width);
    ordered_json facts = preview.facts[i];
    facts["top"] = y;
    facts["left"] = x;
    grid["images"].push_back(std::move(facts));
  }
  return top + rows_of(preview) * (preview.height + kCaption + kGap) + kGap;
}

}  // namespace

std::string RankPreview::to_text() const {
  const ordered_json head{{"channels", channels},
                          {"height", height},
                          {"width", width},
                          {"facts", facts},
                          {"captions", captions}};
  return head.dump() + '\n' + planes;
}

RankPreview RankPreview::from_text(const std::string& text) {
  const std::size_t end = text.find('\n');
  const ordered_json head = ordered_json::parse(text.substr(0, end));
  RankPreview preview;
  head.at("channels").get_to(preview.channels);
  head.at("height").get_to(preview.height);
  head.at("width").get_to(preview.width);
  head.at("facts").get_to(preview.facts);
  head.at("captions").get_to(preview.captions);
  preview.planes = text.substr(end + 1);
  return preview;
}

PreviewPage draw_page(const std::vector<RankPreview>& previews) {
  const RankPreview& first = previews.front();
  std::int64_t height = kGap;
  std::int64_t columns = 1;
  for (const RankPreview& preview : previews) {
    height += kCaption + rows_of(preview) * (preview.height + kCaption + kGap) + kGap;
    columns = std::max(columns, columns_of(preview));
  }
  PreviewPage page;
  page.picture = {height, kGap + columns * (first.width + kGap), first.channels == 3 ? 3 : 1, {}};
  page.picture.pixels.assign(page.picture.bytes(), kPaper);
  page.grids = ordered_json::array();
  Canvas canvas(page.picture);
  std::int64_t top = kGap;
  for (std::size_t rank = 0; rank < previews.size(); ++rank) {
    ordered_json grid;
    top = draw_grid(canvas, previews[rank], rank, top, page.picture.width, grid);
    page.grids.push_back(std::move(grid));
  }
  return page;
}

}  // namespace mnist_train::app
