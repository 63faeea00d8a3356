/* The page: page.html as it is, inside of the program. */
#include "serve/server.h"

__asm__(".section .rodata\n"
        ".balign 8\n"
        ".global serve_page_text\n"
        "serve_page_text:\n"
        ".incbin \"src/serve/page.html\"\n"
        "serve_page_end:\n"
        ".balign 8\n"
        ".global serve_page_size\n"
        "serve_page_size:\n"
        ".quad serve_page_end - serve_page_text\n"
        ".previous\n");

extern const char serve_page_text[] __attribute__((visibility("hidden")));
extern const uint64_t serve_page_size __attribute__((visibility("hidden")));

void serve_page(serve_exchange *x) { serve_reply_page(x, serve_page_text, (size_t)serve_page_size); }
