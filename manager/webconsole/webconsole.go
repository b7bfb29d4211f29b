// Package webconsole has the files of the web console: a page, its styles and its scripts. They need no build, and load
// nothing from elsewhere.
package webconsole

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed files
var files embed.FS

// policy lets the page load only what this manager serves, and lets no other page embed it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"

// Handler serves the files.
func Handler() http.Handler {
	root, err := fs.Sub(files, "files")
	if err != nil {
		panic(err) // the folder is embedded
	}
	serve := http.FileServerFS(root)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache") // a new manager may have other files
		serve.ServeHTTP(w, r)
	})
}
