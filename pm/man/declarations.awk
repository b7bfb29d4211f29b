# declarations.awk - compares what the pages' synopses declare with pm.h: awk -f declarations.awk pm.h PAGE... Each
# enumeration, structure and function of a page has to be in pm.h, the same but for spaces and comments, and each of
# pm.h in a page. Prints what is not so, and fails then.

function normal(text,   marks, i, mark) {
	gsub(/[ \t]+/, " ", text)
	marks = "(){},;=*[]"
	for (i = 1; i <= length(marks); i++) {
		mark = substr(marks, i, 1)
		gsub(" *[" mark "] *", mark, text)
	}
	gsub(/,}/, "}", text)
	gsub(/^ | $/, "", text)
	return text
}

function declare(text) {
	text = normal(text)
	if (FILENAME == header)
		declared[text] = 1
	else if (text in declared)
		shown[text] = 1
	else
		complain(FILENAME ": is not so in pm.h: " text)
}

function complain(text) {
	print text
	failed = 1
}

# A line of C.
function add(line,   braces) {
	text = text " " line
	braces = line
	depth += gsub(/{/, "", braces) - gsub(/}/, "", braces)
	if (depth || line !~ /;[ \t]*$/)
		return
	if (text ~ /[({]/) # else it only says that there is such a structure
		declare(text)
	text = ""
}

function without_comments(line,   from, to) {
	if (comment) {
		to = index(line, "*/")
		if (!to)
			return ""
		comment = 0
		line = substr(line, to + 2)
	}
	while ((from = index(line, "/*"))) {
		to = index(substr(line, from), "*/")
		comment = !to
		line = substr(line, 1, from - 1) (to ? substr(line, from + to + 1) : "")
	}
	return line
}

# The arguments of a macro, quoted or not, from the first on, with commas between them.
function arguments(line, first,   list, count, part) {
	sub(/^\.[A-Z][a-z] */, "", line)
	while (line != "") {
		if (line ~ /^"/) {
			part = substr(line, 2, index(substr(line, 2), "\"") - 1)
			line = substr(line, length(part) + 3)
		} else {
			part = line
			sub(/ .*/, "", part)
			line = substr(line, length(part) + 1)
		}
		sub(/^ +/, "", line)
		if (++count >= first)
			list = list (list == "" ? "" : ",") part
	}
	return list
}

FNR == 1 {
	if (NR == 1)
		header = FILENAME
	text = type = ""
	depth = comment = literal = synopsis = 0
}
FILENAME == header && /^#ifdef __cplusplus/ { skip = 1 }
FILENAME == header && /^#endif/ { skip = 0 }
FILENAME == header {
	if (!skip && $0 !~ /^#/)
		add(without_comments($0))
	next
}
/^\.Sh / { synopsis = $2 == "SYNOPSIS" }
!synopsis { next }
/^\.Ed/ { literal = 0 }
literal { add($0) }
/^\.Bd/ { literal = 1 }
/^\.Ft / { type = substr($0, 5) }
/^\.Fn / { declare(type " " $2 "(" arguments($0, 2) ");") }
/^\.Fo / { name = $2; list = "" }
/^\.Fa / { list = list (list == "" ? "" : ",") arguments($0, 1) }
/^\.Fc/ { declare(type " " name "(" list ");") }

END {
	for (text in declared)
		if (!(text in shown))
			complain("is in no page's synopsis: " text)
	exit failed
}
