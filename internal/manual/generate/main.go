// Command generate writes watari's man pages into a directory.
package main

import (
	"fmt"
	"os"

	"watari/internal/manual"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate FOLDER")
		os.Exit(2)
	}
	pages, err := manual.Pages()
	if err == nil {
		err = manual.Write(os.Args[1], pages)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
