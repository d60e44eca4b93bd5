# Writes the file INPUT as a byte array called NAME into the C++ file OUTPUT.
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUTPUT}
  "#include <cstddef>\n"
  "namespace foresail {\n"
  "extern const unsigned char ${NAME}[];\n"
  "extern const std::size_t ${NAME}Size;\n"
  "const unsigned char ${NAME}[] = {${bytes}};\n"
  "const std::size_t ${NAME}Size = sizeof ${NAME};\n"
  "}  // namespace foresail\n")
