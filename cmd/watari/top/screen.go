package top

// screen.go - the terminal: keys, and the picture, which is redrawn.

import (
	"math"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"watari/cmd/internal/client"
)

const (
	every    = time.Second
	patience = 5 * time.Second // for an answer of the manager
	// listPatience is the patience for the processes of a run. The manager asks guests for them, and waits for silent ones.
	listPatience = 30 * time.Second
)

// trouble is the reason why there is no new picture.
type trouble struct{ error }

// renew asks for a new picture.
type renew struct{}

// screen is the state of the terminal.
type screen struct {
	width, height int
	guests        bool // guests are shown
	first         int  // first line shown under the heading
	picture       *picture
	strips        strips
	trouble       string
	look          func() tea.Msg
	past          func(picture) tea.Msg // asks what was used before the first picture; nil: nothing is known
	view          *view                 // shown instead of the picture; nil: none
	ask           func(*view) tea.Msg   // asks the manager what a view shows
}

// Init requests the first picture.
func (s *screen) Init() tea.Cmd { return s.look }

// Update handles keys, pictures and changes of the terminal's size.
func (s *screen) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch message := message.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = message.Width, message.Height
	case tea.KeyPressMsg:
		return s, s.key(message.String())
	case picture:
		first := s.picture == nil
		s.picture, s.trouble = &message, ""
		s.strips.add(&message)
		if first && s.past != nil {
			return s, tea.Batch(soon(), func() tea.Msg { return s.past(message) })
		}
		return s, soon()
	case history:
		s.strips.begin(message)
	case trouble:
		s.trouble = client.Brief(message.error)
		return s, soon()
	case renew:
		return s, s.look
	case answer:
		return s, s.answered(message)
	case again:
		if message.to == s.view {
			return s, s.open(s.view)
		}
	}
	return s, nil
}

func soon() tea.Cmd { return tea.Tick(every, func(time.Time) tea.Msg { return renew{} }) }

func (s *screen) key(name string) tea.Cmd {
	switch {
	case name == "q" || name == "ctrl+c":
		return tea.Quit
	case s.view != nil:
		return s.view.key(s, name)
	}
	switch name {
	case "esc":
		return tea.Quit
	case "g":
		s.guests = !s.guests
	case "p":
		return s.open(&view{})
	default:
		s.first += scroll(name, s.room())
	}
	return nil
}

// scroll returns by how many lines a key scrolls. page is the number of lines of a page.
func scroll(key string, page int) int {
	switch key {
	case "up", "k":
		return -1
	case "down", "j":
		return 1
	case "pgup":
		return -page
	case "pgdown", "space":
		return page
	case "home":
		return math.MinInt32
	}
	return 0
}

// room returns how many lines of a body the screen shows.
func (s *screen) room() int { return max(1, s.height-headings-1) }

// View draws the picture.
func (s *screen) View() tea.View {
	view := tea.NewView(s.text())
	view.AltScreen = true
	return view
}

// text returns the screen's content: as many lines as the terminal has, but at least one of the body.
func (s *screen) text() string {
	if v := s.view; v != nil {
		lines, foot := v.text()
		if v.run == "" { // keep the chosen run in sight
			v.first = max(min(v.first, v.chosen), v.chosen-s.room()+1)
		}
		return s.fit(lines, &v.first, foot)
	}
	if s.picture == nil {
		if s.trouble != "" {
			return "waiting for the manager: " + s.trouble + "\nq ends"
		}
		return "asking the manager ..."
	}
	shown := *s.picture
	if !s.guests {
		shown.on = nil
	}
	lines := strings.Split(strings.TrimSuffix(draw(&shown, s.strips, s.width), "\n"), "\n")
	foot := "q ends, g guests, p processes of a run, arrows scroll"
	if s.trouble != "" {
		foot = "the picture is old: " + s.trouble
	}
	return s.fit(lines, &s.first, foot)
}

// fit returns the lines that the terminal has room for: the heading, the body from its line first on, and the foot. It
// corrects first if the body is shorter.
func (s *screen) fit(lines []string, first *int, foot string) string {
	head, body := lines[:headings], lines[headings:]
	*first = max(0, min(*first, len(body)-s.room()))
	shown := slices.Concat(head, body[*first:min(len(body), *first+s.room())], []string{foot})
	for i := range shown {
		shown[i] = cut(shown[i], s.width)
	}
	return strings.Join(shown, "\n")
}
