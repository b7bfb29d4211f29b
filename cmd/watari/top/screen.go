package top

// screen.go - the terminal: keys, and the picture, which is redrawn.

import (
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"watari/cmd/internal/client"
)

const (
	every    = time.Second
	patience = 5 * time.Second // for an answer of the manager
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
		s.picture, s.trouble = &message, ""
		s.strips.add(&message)
		return s, soon()
	case trouble:
		s.trouble = client.Brief(message.error)
		return s, soon()
	case renew:
		return s, s.look
	}
	return s, nil
}

func soon() tea.Cmd { return tea.Tick(every, func(time.Time) tea.Msg { return renew{} }) }

func (s *screen) key(name string) tea.Cmd {
	page := max(1, s.height-headings-1)
	switch name {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "g":
		s.guests = !s.guests
	case "up", "k":
		s.first--
	case "down", "j":
		s.first++
	case "pgup":
		s.first -= page
	case "pgdown", "space":
		s.first += page
	case "home":
		s.first = 0
	}
	return nil
}

// View draws the picture.
func (s *screen) View() tea.View {
	view := tea.NewView(s.text())
	view.AltScreen = true
	return view
}

// text returns the screen's content: as many lines as the terminal has, but at least one of the body.
func (s *screen) text() string {
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
	head, body := lines[:headings], lines[headings:]
	room := max(1, s.height-headings-1)
	s.first = max(0, min(s.first, len(body)-room))
	body = body[s.first:min(len(body), s.first+room)]
	foot := "q ends, g guests, arrows scroll"
	if s.trouble != "" {
		foot = "the picture is old: " + s.trouble
	}
	return strings.Join(append(append(append([]string{}, head...), body...), cut(foot, s.width)), "\n")
}
