// Decodes pictures for pixels_test.py. Each line of standard input is
//   PATH none|stretch|crop|pad HEIGHT WIDTH CHANNELS RED GREEN BLUE
// (none keeps the size of the picture). The answer is "error MESSAGE", or the line
//   ok CHANNELS HEIGHT WIDTH
// followed by the planes.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "imaging/codec.h"

namespace {

namespace imaging = mnist_train::imaging;

struct Request {
  std::string path{};
  std::string fit{};
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  std::vector<int> background = std::vector<int>(3);

  explicit Request(const std::string& line) {
    std::istringstream in(line);
    in >> path >> fit >> height >> width >> channels;
    for (int& part : background) in >> part;
  }
};

void answer(Request request) {
  std::ifstream file(request.path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  imaging::Colour background{};
  for (std::size_t i = 0; i < background.size(); ++i) {
    background[i] = static_cast<std::uint8_t>(request.background[i]);
  }
  imaging::Image image =
      imaging::decode({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()},
                      request.path, {.background = background});
  if (request.fit == "none") {
    request.height = image.height;
    request.width = image.width;
  }
  imaging::Framing framing{request.height, request.width};
  if (request.fit == "crop") framing = imaging::crop_framing(image, request.height, request.width);
  if (request.fit == "pad") framing = imaging::pad_framing(image, request.height, request.width);
  std::vector<std::uint8_t> planes(
      static_cast<std::size_t>(request.channels * request.height * request.width));
  imaging::draw_planes(std::move(image), framing, request.channels, request.height, request.width,
                       background, planes.data());
  std::cout << "ok " << request.channels << ' ' << request.height << ' ' << request.width << '\n';
  std::cout.write(reinterpret_cast<const char*>(planes.data()),
                  static_cast<std::streamsize>(planes.size()));
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      answer(Request(line));
    } catch (const mnist_train::Error& error) {
      std::cout << "error " << error.what() << '\n';
    }
  }
}
