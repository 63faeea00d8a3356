/* The tree of a template, and the parser that makes it. */
#ifndef FB_CHAT_NODE_H
#define FB_CHAT_NODE_H

#include "chat/value.h"

typedef enum fb_jinja_node_kind {
    /* Expressions. */
    FB_NODE_CONST,       /* value */
    FB_NODE_NAME,        /* name */
    FB_NODE_LIST,        /* list: elements */
    FB_NODE_TUPLE,       /* the same */
    FB_NODE_DICT,        /* list: key, value, key, … */
    FB_NODE_ATTRIBUTE,   /* left.name */
    FB_NODE_ITEM,        /* left[right] */
    FB_NODE_SLICE,       /* left:right:other, as a subscript; each may be NULL */
    FB_NODE_CALL,        /* left(list) */
    FB_NODE_KEYWORD,     /* name=left, in the list of a call */
    FB_NODE_FILTER,      /* left | name(list); left is NULL for the text of a block */
    FB_NODE_TEST,        /* left is name(list) */
    FB_NODE_NOT,         /* left */
    FB_NODE_NEGATE,      /* left */
    FB_NODE_PLUS,        /* left */
    FB_NODE_BINARY,      /* left op right */
    FB_NODE_COMPARE,     /* left, and a list of FB_NODE_OPERAND */
    FB_NODE_OPERAND,     /* op left */
    FB_NODE_AND,         /* left, right */
    FB_NODE_OR,          /* left, right */
    FB_NODE_CONDITIONAL, /* right if left else other; other may be NULL */
    /* Statements. */
    FB_NODE_DATA,         /* value: a text */
    FB_NODE_OUTPUT,       /* left */
    FB_NODE_FOR,          /* for left in right if other: list, else: orelse */
    FB_NODE_IF,           /* list: FB_NODE_BRANCH */
    FB_NODE_BRANCH,       /* if left (NULL: else): list */
    FB_NODE_SET,          /* left = right */
    FB_NODE_SET_BLOCK,    /* left = the text of list, through the filters in right (or NULL) */
    FB_NODE_MACRO,        /* name(orelse: FB_NODE_PARAM): list; op: FB_MACRO_ flags */
    FB_NODE_PARAM,        /* name=left; left may be NULL */
    FB_NODE_CALL_BLOCK,   /* call (other: FB_NODE_MACRO) left, an FB_NODE_CALL */
    FB_NODE_FILTER_BLOCK, /* the text of list through the filters in left */
    FB_NODE_WITH,         /* orelse: FB_NODE_SET; list */
    FB_NODE_SCOPE,        /* list, as it is: generation */
    FB_NODE_BREAK,
    FB_NODE_CONTINUE
} fb_jinja_node_kind;

typedef enum fb_jinja_op {
    FB_JINJA_ADD,
    FB_JINJA_SUB,
    FB_JINJA_MUL,
    FB_JINJA_DIV,
    FB_JINJA_FLOOR_DIV,
    FB_JINJA_MOD,
    FB_JINJA_POW,
    FB_JINJA_CONCAT,
    FB_JINJA_EQ,
    FB_JINJA_NE,
    FB_JINJA_LT,
    FB_JINJA_LE,
    FB_JINJA_GT,
    FB_JINJA_GE,
    FB_JINJA_IN,
    FB_JINJA_NOT_IN
} fb_jinja_op;

/* What the body of a macro reads, and its calls may therefore pass. */
enum { FB_MACRO_VARARGS = 1, FB_MACRO_KWARGS = 2, FB_MACRO_CALLER = 4 };

struct fb_jinja_node {
    fb_jinja_node_kind kind;
    int32_t line, op;
    fb_jinja_text name;
    fb_jinja_value value;
    fb_jinja_node *left, *right, *other;
    fb_jinja_node *list, *orelse; /* the first of each */
    fb_jinja_node *next;          /* in the list that it is in */
};

/* The statements of a template. */
fb_status fb_jinja_parse_source(fb_jinja_shared *base, const char *source, int64_t size, fb_jinja_node **out);

#endif
