# The library to embed: one archive of all parts, the public headers, and a package for
# find_package(foresail). The parts stay private, so that a consumer gets no flags of ours.

set(part_files)
foreach(part engine text speculative grammar runtime scheduler attention cache model checkpoint kernels cuda cuda_sm90 tensor base)
  if(TARGET foresail_${part})
    list(APPEND parts foresail_${part})
    string(APPEND archive_script "ADDLIB $<TARGET_FILE:foresail_${part}>\n")
  endif()
endforeach()
set(archive ${FORESAIL_ARCHIVE})
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/lib/foresail.mri
  CONTENT "CREATE ${archive}\n${archive_script}SAVE\nEND\n")
add_custom_command(OUTPUT ${archive}
  COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
  COMMAND ${CMAKE_AR} -M < ${CMAKE_BINARY_DIR}/lib/foresail.mri
  DEPENDS ${parts} ${CMAKE_BINARY_DIR}/lib/foresail.mri
  COMMENT "Merging libforesail.a")
add_custom_target(foresail_archive ALL DEPENDS ${archive})

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(FILES ${archive} DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/foresail ${FORESAIL_MADE_HEADERS}/foresail
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/foresail)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/foresail-config.cmake.in
  ${CMAKE_BINARY_DIR}/foresail-config.cmake INSTALL_DESTINATION ${package_dir}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/foresail-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/foresail-config.cmake
  ${CMAKE_BINARY_DIR}/foresail-config-version.cmake DESTINATION ${package_dir})
