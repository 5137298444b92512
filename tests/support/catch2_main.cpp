// The main function of Catch2 2, which version 3 brings as a library.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
